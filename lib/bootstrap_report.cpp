#include "bootstrap_report.h"

#include <weft/weft.h>

#include <algorithm>

#include "base/text.h"

namespace weft {
namespace {

// Returns why a backend was not taken. Of two that all ranks have, the more preferred one that connects them
// is.
std::string why_not(const Registry& registry, const BackendEntry& entry, const std::vector<Offer>& offers,
                    const Backend& chosen) {
  std::string detail;
  const Status here = registry.probe(entry, &detail);
  if (!here.ok()) return here.text();
  if (entry.backend->preference < 0) return "only when it is named";
  if (entry.backend->preference < chosen.preference) return "less preferred";
  for (size_t r = 0; r < offers.size(); r++) {
    const std::vector<std::string>& available = offers[r].available;
    if (std::find(available.begin(), available.end(), entry.name) == available.end())
      return cat("not available on rank ", r);
  }
  return "does not connect all ranks";
}

}  // namespace

std::string creation_text(const Registry& registry, const std::vector<Offer>& offers,
                          const CommOptions& options, int rank, const Backend& chosen,
                          const std::string& transports) {
  std::string others;
  if (offers[0].wanted.empty()) {
    // Where no module was needed none is loaded for this text.
    for (const BackendEntry& entry : offers[0].modules ? registry.backends() : registry.built_in()) {
      if (entry.backend == &chosen) continue;
      others += cat(others.empty() ? " (not " : "; not ", entry.name, ": ",
                    why_not(registry, entry, offers, chosen));
    }
    if (!others.empty()) others += ')';
  } else {
    others = " (named by WEFT_BACKEND or the program)";
  }
  return cat("weft ", WEFT_VERSION_MAJOR, ".", WEFT_VERSION_MINOR, ".", WEFT_VERSION_PATCH, ": rank ", rank,
             " of ", offers.size(), " (", options.members->text(), ") met the others ", options.met,
             "; backend ", chosen.name, others, transports.empty() ? "" : cat("; ", transports),
             options.algorithms.empty() ? "" : cat("; WEFT_TUNE=", options.algorithms));
}

}  // namespace weft
