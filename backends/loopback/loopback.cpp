#include "loopback.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/process.h"
#include "base/text.h"
#include "fabric.h"
#include "transport.h"

namespace weft::loopback {
namespace {

using Handle = std::shared_ptr<Fabric>;

// A fabric that rank 0 of a communicator offers to the other ranks of its process, under a number. The end of
// the object withdraws it. Threads: one thread; take() any thread.
class Offer {
 public:
  explicit Offer(Handle fabric) {
    Offers& offers = all();
    const std::lock_guard lock(offers.mutex);
    number_ = offers.next++;
    offers.fabrics[number_] = std::move(fabric);
  }
  ~Offer() {
    const std::lock_guard lock(all().mutex);
    all().fabrics.erase(number_);
  }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;
  uint64_t number() const { return number_; }
  // Returns null if rank 0 has withdrawn it.
  static Handle take(uint64_t number) {
    const std::lock_guard lock(all().mutex);
    const auto found = all().fabrics.find(number);
    return found == all().fabrics.end() ? nullptr : found->second;
  }

 private:
  struct Offers {
    std::mutex mutex;
    std::map<uint64_t, Handle> fabrics;
    uint64_t next = 0;
  };
  static Offers& all() {
    static auto* const kOffers = new Offers;  // the library has no static destructors
    return *kOffers;
  }
  uint64_t number_ = 0;
};

Bytes encode(const ProcessIdentity& me, uint64_t offered) {
  ByteWriter writer;
  me.put(writer);
  writer.put(offered);
  return writer.take();
}

bool decode(ByteView bytes, ProcessIdentity* identity, uint64_t* offered) {
  ByteReader reader(bytes);
  *identity = ProcessIdentity::get(reader);
  *offered = reader.get<uint64_t>();
  return reader.done();
}

// Rank 0 publishes the number of a fabric, and offers the fabric until all ranks have reported that they have
// it. All ranks compare the same identities, so they reach the same result. offered: used on rank 0 only.
Status exchange_fabric(const BackendArgs& args, uint64_t offered, Handle* fabric) {
  Exchange& exchange = args.exchange;
  const ProcessIdentity me = this_process();
  std::vector<Bytes> all;
  WEFT_TRY(exchange.all_gather(encode(me, offered), &all, args.deadline));
  uint64_t number = 0;
  Status verdict;
  for (size_t r = 0; r < all.size(); r++) {
    ProcessIdentity theirs;
    uint64_t given = 0;
    if (!decode(all[r], &theirs, &given) || theirs != me) {
      verdict = Status::error(Code::kUnavailable,
                              cat("loopback is for ranks of one process; rank ",
                                  exchange.name(static_cast<int>(r)), " is in another process than rank ",
                                  exchange.name(exchange.rank()), ": choose another backend"));
      break;
    }
    if (r == 0) number = given;
  }
  if (verdict.ok()) *fabric = Offer::take(number);
  WEFT_TRY(exchange.all_gather({}, &all, args.deadline));
  if (verdict.ok() && *fabric == nullptr) {
    verdict =
        Status::error(Code::kInternal, "loopback: rank 0 withdrew its mailboxes before all ranks had them");
  }
  return verdict;
}

Status share_fabric(const BackendArgs& args, Handle* fabric) {
  if (args.exchange.rank() != 0) return exchange_fabric(args, 0, fabric);
  const Offer offer(std::make_shared<Fabric>(args.exchange.size()));
  return exchange_fabric(args, offer.number(), fabric);
}

Status probe(const Libraries&, std::string* detail) {
  *detail = "mailboxes between threads of this process";
  return {};
}

Status make_transport(const BackendArgs& args, std::unique_ptr<Transport>* transport) {
  Handle fabric;
  WEFT_TRY(share_fabric(args, &fabric));
  *transport = std::make_unique<LoopbackTransport>(std::move(fabric), args.exchange.rank());
  return {};
}

constexpr Backend kBackend = {
    .name = "loopback",
    .summary = "ranks as threads of one process, for tests",
    .preference = -1,
    .find = probe,
    .make_transport = make_transport,
    .make_collectives = nullptr,
    .reachable = nullptr,
};

}  // namespace

const Backend& backend() {
  return kBackend;
}

}  // namespace weft::loopback
