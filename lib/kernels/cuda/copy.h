// The bodies of weft_copy_pieces and weft_accumulate_pieces. Their host counterpart is
// lib/kernels/convert.cpp.
#pragma once

#include "kernels/cuda/elements.h"

namespace weft::cuda {

template <class From, class To>
struct Convert {
  static WEFT_KERNEL_CODE typename To::Stored apply(typename From::Stored v, double scale) {
    if constexpr (sizeof(typename From::Stored) == 8 && sizeof(typename To::Stored) == 2) {
      return To::pack(odd_from(v * scale));
    } else if constexpr (sizeof(typename From::Stored) == 8 || sizeof(typename To::Stored) == 8) {
      return To::pack(static_cast<double>(From::load(v)) * scale);
    } else {
      return To::pack(From::load(v) * static_cast<float>(scale));
    }
  }
};

// Copies the bits of elements of this size.
template <class T>
struct Move {
  static WEFT_KERNEL_CODE T apply(T v, double) { return v; }
};

// Copies a piece. The threads of a block process neighbouring elements. Four loads are in flight before the
// first store.
template <class Work, class From, class To>
WEFT_KERNEL_CODE void copy_piece(const Place& place, const CopyPiece& piece, double scale) {
  const auto* const src = reinterpret_cast<const From*>(piece.src);
  auto* const dst = reinterpret_cast<To*>(piece.dst);
  constexpr int kPack = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  using FromPack = Pack<From, kPack>;
  using ToPack = Pack<To, kPack>;
  uint64_t done = 0;
  if (reinterpret_cast<uintptr_t>(src) % alignof(FromPack) == 0 &&
      reinterpret_cast<uintptr_t>(dst) % alignof(ToPack) == 0) {
    const auto* const from = reinterpret_cast<const FromPack*>(src);
    auto* const to = reinterpret_cast<ToPack*>(dst);
    const uint64_t packs = piece.count / kPack;
    constexpr int kUnroll = 4;
    for (uint64_t at = place.thread; at < packs; at += uint64_t{place.threads} * kUnroll) {
      FromPack in[kUnroll];
      WEFT_KERNEL_UNROLL
      for (int u = 0; u < kUnroll; u++) {
        const uint64_t i = at + uint64_t{place.threads} * static_cast<uint64_t>(u);
        if (i < packs) in[u] = from[i];
      }
      WEFT_KERNEL_UNROLL
      for (int u = 0; u < kUnroll; u++) {
        const uint64_t i = at + uint64_t{place.threads} * static_cast<uint64_t>(u);
        if (i >= packs) continue;
        ToPack out;
        WEFT_KERNEL_UNROLL
        for (int k = 0; k < kPack; k++) out.values[k] = Work::apply(in[u].values[k], scale);
        to[i] = out;
      }
    }
    done = packs * kPack;
  }
  for (uint64_t i = done + place.thread; i < piece.count; i += place.threads)
    dst[i] = Work::apply(src[i], scale);
}

template <class From>
WEFT_KERNEL_CODE void copy_from(const Place& place, const CopyPiecesArgs& args, const CopyPiece& piece) {
  using S = typename From::Stored;
  switch (args.dst_dtype) {
    case kF16:
      return copy_piece<Convert<From, F16>, S, uint16_t>(place, piece, args.scale);
    case kBf16:
      return copy_piece<Convert<From, Bf16>, S, uint16_t>(place, piece, args.scale);
    case kF32:
      return copy_piece<Convert<From, F32>, S, float>(place, piece, args.scale);
    default:
      return copy_piece<Convert<From, F64>, S, double>(place, piece, args.scale);
  }
}

WEFT_KERNEL_CODE void copy_pieces(const Place& place, const CopyPiecesArgs& args) {
  const CopyPiece piece = args.pieces[place.block];
  if (args.src_dtype == args.dst_dtype && (args.src_dtype < kF16 || args.scale == 1.0)) {
    switch (args.src_dtype) {
      case kU8:
      case kI8:
        return copy_piece<Move<uint8_t>, uint8_t, uint8_t>(place, piece, 1.0);
      case kU16:
      case kI16:
      case kF16:
      case kBf16:
        return copy_piece<Move<uint16_t>, uint16_t, uint16_t>(place, piece, 1.0);
      case kU32:
      case kI32:
      case kF32:
        return copy_piece<Move<uint32_t>, uint32_t, uint32_t>(place, piece, 1.0);
      default:
        return copy_piece<Move<uint64_t>, uint64_t, uint64_t>(place, piece, 1.0);
    }
  }
  switch (args.src_dtype) {
    case kF16:
      return copy_from<F16>(place, args, piece);
    case kBf16:
      return copy_from<Bf16>(place, args, piece);
    case kF32:
      return copy_from<F32>(place, args, piece);
    default:
      return copy_from<F64>(place, args, piece);
  }
}

template <class From, class To>
WEFT_KERNEL_CODE void add_piece(const Place& place, const CopyPiece& piece, double given) {
  using Math = typename To::Math;
  const auto* const src = reinterpret_cast<const typename From::Stored*>(piece.src);
  auto* const dst = reinterpret_cast<typename To::Stored*>(piece.dst);
  const auto scale = static_cast<Math>(given);
  for (uint64_t i = place.thread; i < piece.count; i += place.threads)
    dst[i] = To::pack(To::load(dst[i]) + static_cast<Math>(From::load(src[i])) * scale);
}

template <class T>
WEFT_KERNEL_CODE void add_integers(const Place& place, const CopyPiece& piece) {
  const auto* const src = reinterpret_cast<const T*>(piece.src);
  auto* const dst = reinterpret_cast<T*>(piece.dst);
  for (uint64_t i = place.thread; i < piece.count; i += place.threads)
    dst[i] = static_cast<T>(dst[i] + src[i]);
}

template <class From>
WEFT_KERNEL_CODE void add_from(const Place& place, const CopyPiecesArgs& args, const CopyPiece& piece) {
  switch (args.dst_dtype) {
    case kF16:
      return add_piece<From, F16>(place, piece, args.scale);
    case kBf16:
      return add_piece<From, Bf16>(place, piece, args.scale);
    default:
      return add_piece<From, F32>(place, piece, args.scale);
  }
}

WEFT_KERNEL_CODE void accumulate_pieces(const Place& place, const CopyPiecesArgs& args) {
  const CopyPiece piece = args.pieces[place.block];
  switch (args.src_dtype) {
    case kU8:
    case kI8:
      return add_integers<uint8_t>(place, piece);
    case kU16:
    case kI16:
      return add_integers<uint16_t>(place, piece);
    case kU32:
    case kI32:
      return add_integers<uint32_t>(place, piece);
    case kU64:
    case kI64:
      return add_integers<uint64_t>(place, piece);
    case kF16:
      return add_from<F16>(place, args, piece);
    case kBf16:
      return add_from<Bf16>(place, args, piece);
    case kF32:
      return add_from<F32>(place, args, piece);
    default:
      return add_piece<F64, F64>(place, piece, args.scale);
  }
}

}  // namespace weft::cuda
