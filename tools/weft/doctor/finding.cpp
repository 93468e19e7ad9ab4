#include "finding.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"

namespace doctor {

using weft::cat;

const char* name(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "error";
    case Severity::kWarning:
      return "warning";
    case Severity::kNote:
      return "note";
  }
  return "?";
}

std::string rank_text(const std::vector<int>& ranks) {
  return cat(ranks.size() == 1 ? "rank " : "ranks ", weft::list_text(ranks, 8));
}

std::string rank_on_host(int rank, const std::string& host) {
  return cat("rank ", rank, " (", host, ")");
}

std::string rank_on_host(const Facts& rank) {
  return rank_on_host(rank.rank, rank.host);
}

namespace {

// Merges findings that differ only in their ranks, in the order of their first one.
std::vector<Finding> merged(std::vector<Finding> findings) {
  std::vector<Finding> result;
  std::map<std::tuple<Severity, std::string, std::string>, size_t> places;
  for (Finding& finding : findings) {
    const auto [place, fresh] =
        places.try_emplace({finding.severity, finding.text, finding.mend}, result.size());
    if (fresh) {
      result.push_back(std::move(finding));
    } else {
      std::vector<int>& ranks = result[place->second].ranks;
      ranks.insert(ranks.end(), finding.ranks.begin(), finding.ranks.end());
    }
  }
  return result;
}

// Counts as in "1 error", "2 errors".
std::string count_text(size_t count, const char* what) {
  return cat(count, " ", what, count == 1 ? "" : "s");
}

// Returns the hosts of ranks, each once. Ranks that did not send their facts are left out.
std::vector<std::string> hosts_of(const Inspection& inspection, const std::vector<int>& ranks) {
  std::vector<std::string> hosts;
  for (const Facts& rank : inspection.ranks) {
    const bool named = std::find(ranks.begin(), ranks.end(), rank.rank) != ranks.end();
    if (named && std::find(hosts.begin(), hosts.end(), rank.host) == hosts.end()) hosts.push_back(rank.host);
  }
  return hosts;
}

size_t count_hosts(const Inspection& inspection) {
  std::set<std::string> machines;
  for (const Facts& rank : inspection.ranks) machines.insert(rank.machine);
  return machines.size();
}

}  // namespace

std::vector<Finding> diagnose(const Inspection& inspection) {
  std::vector<Finding> findings;
  for (const Check& check : checks()) {
    std::vector<Finding> found;
    check.examine(inspection, &found);
    for (Finding& finding : merged(std::move(found))) {
      finding.id = check.id;
      if (finding.mend.empty()) finding.mend = check.mend;
      if (finding.hosts.empty()) finding.hosts = hosts_of(inspection, finding.ranks);
      findings.push_back(std::move(finding));
    }
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

bool has_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::kError; });
}

nlohmann::json describe(const Inspection& inspection, const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"id", finding.id},
                    {"severity", name(finding.severity)},
                    {"ranks", finding.ranks},
                    {"hosts", finding.hosts},
                    {"text", finding.text},
                    {"mend", finding.mend}});
  }
  return {{"findings", list}, {"transfers", inspection.transfers}, {"facts", inspection.ranks}};
}

std::string text_of(const Inspection& inspection, const std::vector<Finding>& findings) {
  std::string text;
  std::map<Severity, size_t> counts;
  const bool alone = inspection.ranks.size() == 1 && inspection.ranks[0].size == 1;
  const size_t hosts = count_hosts(inspection);
  for (const Finding& finding : findings) {
    counts[finding.severity]++;
    std::string where;
    if (!alone && !finding.ranks.empty() && finding.ranks.size() < inspection.ranks.size()) {
      where = cat(" (", rank_text(finding.ranks));
      if (hosts > 1) where += cat(" on ", weft::list_text(finding.hosts, 4));
      where += ")";
    }
    text += cat(name(finding.severity), ": ", finding.id, where, ": ", finding.text, "\n");
    text += cat("  mend: ", finding.mend, "\n");
  }
  const bool measurable = inspection.ranks.size() > 1 && inspection.communicator.empty();
  if (measurable && inspection.transfers.empty())
    text += "transfers were not measured, because of the errors\n";
  const std::string where =
      alone ? cat("host ", inspection.ranks[0].host)
            : cat(count_text(inspection.ranks.size(), "rank"), " on ", count_text(hosts, "host"));
  return cat(text, "weft doctor: ", where, ": ", count_text(counts[Severity::kError], "error"), ", ",
             count_text(counts[Severity::kWarning], "warning"), ", ",
             count_text(counts[Severity::kNote], "note"), "\n");
}

}  // namespace doctor
