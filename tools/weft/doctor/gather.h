// All-gather of values that have a form in JSON.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "transport/exchange.h"

namespace doctor {

// Gives every rank the values of all ranks, in rank order. The others must run the same version of Weft.
template <class Value>
weft::Status all_gather(weft::Exchange& exchange, const Value& mine, weft::Deadline deadline,
                        std::vector<Value>* all) {
  const std::string text =
      nlohmann::json(mine).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<weft::Bytes> parts;
  WEFT_TRY(exchange.all_gather(std::as_bytes(std::span(text)), &parts, deadline));
  all->clear();
  for (const weft::Bytes& part : parts) {
    const auto* const begin = reinterpret_cast<const char*>(part.data());
    const nlohmann::json json = nlohmann::json::parse(begin, begin + part.size(), nullptr, false);
    try {
      all->push_back(json.get<Value>());
    } catch (const nlohmann::json::exception&) {
      return weft::Status::error(weft::Code::kMismatch,
                                 weft::cat("rank ", all->size(),
                                           " sent other facts than this version of weft doctor "
                                           "knows: install the same Weft on all hosts"));
    }
  }
  return {};
}

}  // namespace doctor
