// lib/reducer/manifest/manifest: valid lists of parameters, and the comparison of two ranks' lists.
#include <limits>
#include <string>
#include <vector>

#include "reducer/manifest/manifest.h"
#include "support/catch.h"

namespace unit_manifest {

using namespace weft;

namespace {

// A weft_param with the memory to which it points.
struct Given {
  std::string name = "w";
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {};  // empty: default
  int32_t dtype = WEFT_DTYPE_F32;
  int32_t ndim = -1;  // -1: size of shape
  int32_t device_kind = WEFT_DEVICE_HOST;
  uint64_t flags = 0;

  weft_param param() const {
    weft_param p{};
    p.struct_size = sizeof p;
    p.name = name.c_str();
    p.dtype = dtype;
    p.ndim = ndim < 0 ? static_cast<int32_t>(shape.size()) : ndim;
    p.shape = shape.empty() ? nullptr : shape.data();
    p.strides = strides.empty() ? nullptr : strides.data();
    p.device_kind = device_kind;
    p.flags = flags;
    return p;
  }
};

Status make(const std::vector<Given>& given, Manifest* manifest) {
  std::vector<weft_param> params;
  for (const Given& g : given) params.push_back(g.param());
  return make_manifest(params.data(), params.size(), sizeof(weft_param), manifest);
}

Manifest made(const std::vector<Given>& given) {
  Manifest manifest;
  const Status status = make(given, &manifest);
  INFO(status.text());
  REQUIRE(status.ok());
  return manifest;
}

std::string refused(const Given& given, Code code = Code::kArg) {
  Manifest manifest;
  const Status status = make({{.name = "first"}, given}, &manifest);
  CHECK(status.code() == code);
  return status.text();
}

bool has(const std::string& text, const std::string& part) {
  INFO(text << " does not contain " << part);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a manifest counts elements and knows which layouts are dense") {
  const Manifest m = made({{.name = "matrix"},
                           {.name = "scalar", .shape = {}},
                           {.name = "none", .shape = {4, 0, 3}},
                           {.name = "column", .strides = {1, 2}},
                           {.name = "padded", .strides = {4, 1}},
                           {.name = "one", .shape = {1, 5, 1}, .strides = {77, 1, -3}}});
  CHECK(m.params[0].count == 6);
  CHECK(m.params[0].strides == std::vector<int64_t>{3, 1});
  CHECK(m.params[1].count == 1);
  CHECK(m.params[2].count == 0);
  CHECK(m.params[2].dense);
  CHECK(m.params[3].dense);
  CHECK(!m.params[4].dense);
  CHECK(m.params[5].dense);  // strides of dimensions with one element do not matter
  CHECK(m.params[5].strides == row_major({1, 5, 1}));
}

TEST_CASE("a parameter that cannot be synchronised is refused by name") {
  CHECK(has(refused({.name = ""}), "no name"));
  CHECK(has(refused({.name = "first"}), "same name"));
  CHECK(has(refused({.name = "x", .dtype = WEFT_DTYPE_I32}), "'x'"));
  CHECK(has(refused({.name = "x", .dtype = 0}), "unknown dtype 0"));
  CHECK(has(refused({.name = "x", .dtype = 256 + WEFT_DTYPE_F32}), "unknown dtype"));
  CHECK(has(refused({.name = "x", .shape = {2, -1}}), "negative"));
  CHECK(has(refused({.name = "x", .ndim = 17}), "ndim is 17"));
  CHECK(has(refused({.name = "x", .shape = {}, .ndim = 2}), "shape is NULL"));
  CHECK(has(refused({.name = "x", .shape = {int64_t{1} << 40, int64_t{1} << 40}}), "too many"));
  CHECK(has(refused({.name = "x", .shape = {0, int64_t{1} << 62, 16}}), "too many"));
  CHECK(has(refused({.name = "x", .shape = {int64_t{1} << 61}}), "too many"));
  CHECK(has(refused({.name = "x", .strides = {1, 1}}), "more than once"));
  CHECK(has(refused({.name = "x", .strides = {0, 1}}), "more than once"));
  CHECK(has(refused({.name = "x", .strides = {-3, 1}}), "negative"));
  CHECK(has(refused({.name = "x", .strides = {std::numeric_limits<int64_t>::max(), 1}}), "too far"));
  CHECK(has(refused({.name = "x", .device_kind = 7}), "device_kind is 7, must be WEFT_DEVICE_HOST (0)"));
  CHECK(has(
      refused({.name = "x", .device_kind = WEFT_DEVICE_CUDA, .flags = WEFT_PARAM_SPARSE}, Code::kUnsupported),
      "'x'): it is sparse"));
  CHECK(has(refused({.name = "x", .flags = 32}), "unknown flags 0x20"));
  CHECK(has(refused({.name = "x", .flags = WEFT_PARAM_BUFFER | WEFT_PARAM_IGNORED}), "not several"));
  CHECK(has(refused({.name = "x", .flags = WEFT_PARAM_STATE_ONLY}),
            "weft_param.parameter is NULL, but must be set, because the parameter is state"));
  CHECK(has(refused({.name = std::string(5000, 'n')}), "longer"));
  Manifest manifest;
  CHECK(make_manifest(nullptr, 0, sizeof(weft_param), &manifest).code() == Code::kArg);
  float value = 0;
  weft_param frozen = Given{.name = "frozen", .shape = {1}, .flags = WEFT_PARAM_STATE_ONLY}.param();
  frozen.parameter = &value;
  const int64_t one = 1;
  frozen.name = "frozen";
  frozen.shape = &one;
  CHECK(has(make_manifest(&frozen, 1, sizeof frozen, &manifest).text(),
            "no parameter of the list has a gradient"));
}

TEST_CASE("parameters that together exceed the address space are refused") {
  const int64_t huge = int64_t{1} << 44;  // 64 TiB of f32
  weft_param params[4]{};
  const char* const names[] = {"a", "b", "c", "d"};
  for (int i = 0; i < 4; i++) {
    params[i] = {sizeof(weft_param), names[i], WEFT_DTYPE_F32, 1, &huge, nullptr, 0, 0, 0};
  }
  Manifest manifest;
  CHECK(make_manifest(params, 2, sizeof(weft_param), &manifest).ok());
  const Status status = make_manifest(params, 4, sizeof(weft_param), &manifest);
  CHECK(status.code() == Code::kArg);
  CHECK(has(status.text(), "'c'"));
}

TEST_CASE("params may be elements of a longer struct than this library knows") {
  struct Longer {
    weft_param param;
    uint64_t tail;
  };
  const Given a{.name = "a"}, b{.name = "b", .shape = {7}};
  const std::vector<Longer> longer = {{a.param(), 0}, {b.param(), 0}};
  Manifest manifest;
  REQUIRE(make_manifest(&longer[0].param, 2, sizeof(Longer), &manifest).ok());
  CHECK(manifest.params[1].name == "b");
  CHECK(manifest.params[1].count == 7);
}

TEST_CASE("a written manifest can be read again, and other bytes are refused") {
  const Manifest m = made({{.name = "a", .strides = {1, 2}}, {.name = "b", .shape = {}}});
  ByteWriter writer;
  m.write(&writer);
  Manifest read;
  REQUIRE(Manifest::read(writer.bytes(), &read).ok());
  CHECK(read.params == m.params);

  for (size_t size = 0; size < writer.bytes().size(); size++) {
    CHECK(Manifest::read(ByteView(writer.bytes()).first(size), &read).code() == Code::kMismatch);
  }
  Bytes longer = writer.bytes();
  longer.push_back(std::byte{0});
  CHECK(!Manifest::read(longer, &read).ok());

  // Any single byte may be wrong: no crash, no huge allocation, and a decoded parameter is valid.
  for (size_t at = 0; at < writer.bytes().size(); at++) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      Bytes bytes = writer.bytes();
      bytes[at] ^= static_cast<std::byte>(flip);
      if (!Manifest::read(bytes, &read).ok()) continue;
      for (const Param& p : read.params) CHECK(is_float(p.dtype));
    }
  }
}

TEST_CASE("the first difference between two ranks names the parameter and both sides") {
  const Manifest m = made({{.name = "a"}, {.name = "b", .shape = {5}}});
  CHECK(manifest_difference(0, m, 1, m).empty());

  const std::string shape = manifest_difference(2, m, 0, made({{.name = "a"}, {.name = "b", .shape = {6}}}));
  CHECK(shape == "parameter 1 'b' is f32 [5] on rank 2 and f32 [6] on rank 0");
  CHECK(has(manifest_difference(1, m, 0, made({{.name = "a", .dtype = WEFT_DTYPE_F64}, {.name = "b"}})),
            "parameter 0 'a' is f32 [2, 3] on rank 1 and f64 [2, 3] on rank 0"));
  CHECK(has(manifest_difference(1, m, 0, made({{.name = "a", .strides = {1, 2}}, {.name = "b"}})),
            "with strides [1, 2] on rank 0"));
  CHECK(has(manifest_difference(1, m, 0, made({{.name = "b", .shape = {5}}, {.name = "a"}})),
            "in another order"));
  CHECK(has(manifest_difference(1, m, 0, made({{.name = "a"}, {.name = "c"}})), "is 'b' f32 [5] on rank 1"));
  const std::string count = manifest_difference(1, made({{.name = "a"}}), 0, m);
  CHECK(has(count, "rank 1 has 1 parameters and rank 0 has 2"));
  CHECK(has(count, "'b' f32 [5] is on rank 0 only"));
}

TEST_CASE("complex numbers are pairs of floats in one more dimension, dense if the complex layout is") {
  const Manifest m = made({{.name = "c", .shape = {4, 3}, .dtype = WEFT_DTYPE_C64},
                           {.name = "t", .shape = {4, 3}, .strides = {1, 4}, .dtype = WEFT_DTYPE_C128},
                           {.name = "gaps", .shape = {4}, .strides = {3}, .dtype = WEFT_DTYPE_C64},
                           {.name = "scalar", .shape = {}, .dtype = WEFT_DTYPE_C64}});
  CHECK(m.params[0].dtype == Dtype::kF32);
  CHECK(m.params[0].shape == std::vector<int64_t>{4, 3, 2});
  CHECK(m.params[0].strides == std::vector<int64_t>{6, 2, 1});
  CHECK((m.params[0].dense && m.params[0].count == 24));
  CHECK(m.params[0].text() == "c64 [4, 3]");
  CHECK(m.params[1].dtype == Dtype::kF64);
  CHECK(m.params[1].strides == std::vector<int64_t>{2, 8, 1});
  CHECK(m.params[1].dense);
  CHECK(m.params[1].text() == "c128 [4, 3] with strides [1, 4]");
  CHECK_FALSE(m.params[2].dense);
  CHECK(m.params[3].shape == std::vector<int64_t>{2});
  ByteWriter writer;
  m.write(&writer);
  Manifest read;
  REQUIRE(Manifest::read(writer.bytes(), &read).ok());
  CHECK(read.params == m.params);
  const Manifest floats = made({{.name = "c", .shape = {4, 3, 2}},
                                {.name = "t", .shape = {4, 3}, .strides = {1, 4}, .dtype = WEFT_DTYPE_F64},
                                {.name = "gaps", .shape = {4}, .strides = {3}},
                                {.name = "scalar", .shape = {2}}});
  CHECK(has(manifest_difference(0, m, 1, floats), "'c' is c64 [4, 3] on rank 0 and f32 [4, 3, 2] on rank 1"));
  CHECK(
      has(refused({.shape = std::vector<int64_t>(16, 1), .dtype = WEFT_DTYPE_C64}), "at most 15 dimensions"));
  CHECK(
      has(refused({.shape = {2}, .strides = {INT64_MAX / 2 + 1}, .dtype = WEFT_DTYPE_C64}), "reach too far"));
  CHECK(has(refused({.dtype = 15}), "unknown dtype 15"));
}

}  // namespace unit_manifest
