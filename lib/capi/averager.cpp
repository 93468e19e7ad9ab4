// weft_averager_*.
#include "reducer/averager.h"

#include <utility>
#include <vector>

#include "capi/call.h"
#include "capi/group.h"
#include "capi/handles.h"
#include "capi/params.h"

struct weft_averager {
  std::shared_ptr<weft::Context> context;
  std::unique_ptr<weft::Averager> rep;
};

using namespace weft;
using namespace weft::capi;

namespace {

Status read_levels(const weft_averager_options& options, const std::shared_ptr<Comm>& comm,
                   std::vector<Averager::Level>* levels) {
  if (options.level_count == 0) return {};
  if (options.levels == nullptr) return null_argument("weft_averager_options.levels");
  const uint64_t stride = options.level_size != 0 ? options.level_size : options.levels->struct_size;
  if (stride < sizeof(size_t) || stride > kMaxStructSize) {
    return Status::error(Code::kArg, cat("weft_averager_options.",
                                         options.level_size != 0 ? "level_size" : "levels[0].struct_size",
                                         " is ", stride, "; set it to sizeof(weft_average_level)"));
  }
  const auto* at = reinterpret_cast<const unsigned char*>(options.levels);
  for (uint64_t i = 0; i < options.level_count; i++, at += stride) {
    weft_average_level level{};
    WEFT_TRY(
        read_struct(reinterpret_cast<const weft_average_level*>(at), "weft_average_level", &level, stride));
    levels->push_back({level.period, level.comm != nullptr ? level.comm->rep : comm});
  }
  return {};
}

Status create(weft_comm& comm, const weft_averager_options* given, weft_averager* made) {
  weft_averager_options options{};
  std::vector<weft_param> params;
  std::vector<Averager::Level> levels;
  const auto read = [&]() -> Status {
    WEFT_NOT_NULL(given);
    WEFT_TRY(read_struct(given, "weft_averager_options", &options));
    WEFT_TRY(read_params(options.params, options.param_count, options.param_size, &params));
    options.params = params.data();
    options.param_size = sizeof(weft_param);
    return read_levels(options, comm.rep, &levels);
  };
  const Status status = read();
  made->context = comm.rep->shared_context();
  return with_places(*comm.rep, Averager::create(comm.rep, status, options, std::move(levels), &made->rep));
}

}  // namespace

extern "C" {

weft_status weft_averager_create(weft_comm* comm, const weft_averager_options* options,
                                 weft_averager** averager, weft_error* error) {
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(averager);
    *averager = nullptr;
    WEFT_NOT_NULL(comm);
    WEFT_TRY(check_call(comm->rep->context()));
    WEFT_TRY(no_group(*comm));
    auto made = std::make_unique<weft_averager>();
    WEFT_TRY(create(*comm, options, made.get()));
    *averager = made.release();
    return {};
  });
}

weft_status weft_averager_step(weft_averager* averager, uint64_t* period, weft_error* error) {
  uint64_t none = 0;
  return reported(error, [&]() -> Status {
    WEFT_NOT_NULL(averager);
    WEFT_TRY(check_call(*averager->context));
    return averager->rep->step(period != nullptr ? period : &none);
  });
}

weft_status weft_averager_destroy(weft_averager** averager) {
  return plain([&]() -> Status {
    WEFT_NOT_NULL(averager);
    if (*averager == nullptr) return {};
    if (!(*averager)->context->forked()) {
      WEFT_TRY(check_call(*(*averager)->context));
      delete *averager;
    }
    *averager = nullptr;
    return Interrupt::status();
  });
}

}  // extern "C"
