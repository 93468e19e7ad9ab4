// weft store: runs the store for the ranks' rendezvous as a separate program. Like trace.cpp it uses the
// library's internals.
#include <signal.h>

#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>

#include "base/clock.h"
#include "base/log.h"
#include "commands.h"
#include "environment/secret.h"
#include "rendezvous/store_server.h"
#include "signals.h"

namespace {

void must(const weft::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.text());
}

// Serves until SIGINT or SIGTERM.
int serve(const std::string& address, weft::LogLevel level) {
  sigset_t endings;
  sigemptyset(&endings);
  for (const int number : ending_signals()) sigaddset(&endings, number);
  ::sigprocmask(SIG_BLOCK, &endings, nullptr);

  weft::Bytes secret;
  must(weft::process_secret(&secret));
  must(weft::init_crypto());
  weft::StoreServerOptions options;
  must(weft::parse_address(address, &options.listen));
  options.key = secret.empty() ? weft::AuthKey::open() : weft::AuthKey::from_secret(secret);
  weft::SystemClock clock;
  weft::Log log([](weft::LogLevel, const char* line) { std::fprintf(stderr, "weft store: %s\n", line); },
                level);
  std::unique_ptr<weft::StoreServer> server;
  bool in_use = false;
  must(weft::StoreServer::start(options, clock, log, &server, &in_use));
  std::printf("weft store: listening on %s\n", server->address().text().c_str());
  std::fflush(stdout);
  int number = 0;
  ::sigwait(&endings, &number);
  server->stop(weft::Deadline::after(clock, 2000, 0));
  return 0;
}

}  // namespace

void add_store(CLI::App& app, int* exit_code) {
  auto address = std::make_shared<std::string>();
  CLI::App* store =
      app.add_subcommand("store", "Serve a store, through which the ranks of jobs find each other");
  store->footer(
      "Ranks use this store if they have WEFT_STORE=ADDRESS and WEFT_STORE_EXTERNAL=1. The job's secret is\n"
      "read from WEFT_SECRET_FILE or WEFT_SECRET; without a secret only addresses of this machine are\n"
      "served. SIGINT or SIGTERM ends the store.");
  store->add_option("--listen", *address, "address: tcp://HOST:PORT (port 0: any free port) or unix:@NAME")
      ->required();
  auto level = std::make_shared<weft::LogLevel>(weft::LogLevel::kWarn);
  const std::map<std::string, weft::LogLevel> levels = {{"error", weft::LogLevel::kError},
                                                        {"warn", weft::LogLevel::kWarn},
                                                        {"info", weft::LogLevel::kInfo},
                                                        {"debug", weft::LogLevel::kDebug}};
  store
      ->add_option_function<std::string>(
          "--log", [level, levels](const std::string& name) { *level = levels.at(name); },
          "log lines on standard error: error, warn, info or debug (default warn)")
      ->check(CLI::IsMember({"error", "warn", "info", "debug"}))
      ->option_text("LEVEL");
  store->callback([address, level, exit_code] { *exit_code = serve(*address, *level); });
}
