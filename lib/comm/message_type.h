// The types of messages on a communicator's control channel: the first byte. The class that handles a type
// declares its number. Types 4 and 5 are handled by Generations, the others by Comm::on_message, whose switch
// does not compile if two of them are equal or one is not handled.
#pragma once

#include <cstdint>

#include "comm/agreed_errors.h"
#include "comm/clock_probe.h"
#include "comm/drain.h"
#include "comm/lane_messages.h"
#include "control/generations.h"

namespace weft {

enum class MessageType : uint8_t {
  kFailure = 1,   // the sender's failure
  kExchange = 2,  // a round of an exchange that creates a subgroup
  kDrain = Drain::kMessage,
  kConsensus = Generations::kConsensusMessage,
  kSurvivorsExchange = Generations::kExchangeMessage,
  kLaneMessage = LaneMessages::kMessage,
  kAgreedError = AgreedErrors::kErrorMessage,
  kContinues = AgreedErrors::kContinuesMessage,
  kClockQuestion = ClockProbe::kQuestionMessage,
  kClockAnswer = ClockProbe::kAnswerMessage,
};

}  // namespace weft
