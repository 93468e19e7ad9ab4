#include <weft/weft.h>

int main(void) {
  weft_error error = WEFT_ERROR_INIT;
  weft_context* context = NULL;
  weft_hook* hook = NULL;
  if (weft_context_create(NULL, &context, &error)) return 1;
  BLOCK
  if (hook == NULL) return 1;
  weft_hook_destroy(&hook);
  return weft_context_destroy(&context);
}
