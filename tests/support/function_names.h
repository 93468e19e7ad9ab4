// Names the functions of a stack from the symbol tables of the files that hold them, which nm reads: those of
// libweft are not exported.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>

namespace weft::test {

class FunctionNames {
 public:
  // Returns the function that holds the address; "?" if unknown.
  std::string at(void* address) {
    Dl_info file = {};
    if (::dladdr(address, &file) == 0 || file.dli_fname == nullptr) return "?";
    const auto [table, is_new] = tables_.try_emplace(file.dli_fname);
    if (is_new) read(file.dli_fname, table->second);
    const uint64_t offset = reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(file.dli_fbase);
    const auto after = table->second.upper_bound(offset);
    if (after != table->second.begin()) return std::prev(after)->second;
    return file.dli_sname == nullptr ? "?" : file.dli_sname;
  }

 private:
  using Table = std::map<uint64_t, std::string>;
  static void read(const std::string& file, Table& table) {
    std::FILE* const nm = ::popen(("nm -C --defined-only '" + file + "' 2>&1").c_str(), "r");
    if (nm == nullptr) return;
    char* line = nullptr;
    size_t room = 0;
    while (::getline(&line, &room, nm) > 0) {
      unsigned long long address = 0;
      char type = 0;
      int name = 0;
      if (std::sscanf(line, "%llx %c %n", &address, &type, &name) != 2 || name == 0) continue;
      std::string text = line + name;
      while (!text.empty() && text.back() == '\n') text.pop_back();
      for (const char* const unnamed : {"(anonymous namespace)::", "[abi:cxx11]"}) {
        for (size_t at; (at = text.find(unnamed)) != std::string::npos;) text.erase(at, std::strlen(unnamed));
      }
      if (std::strchr("tTwW", type) != nullptr) table.try_emplace(address, text);
    }
    std::free(line);
    ::pclose(nm);
  }

  std::map<std::string, Table> tables_;
};

}  // namespace weft::test
