#include <weft/weft.h>

int main(void) {
  BLOCK
  return stats.struct_size == sizeof stats ? 0 : 1;
}
