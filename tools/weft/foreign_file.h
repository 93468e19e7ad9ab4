// Reads files that other processes wrote, whose content is not trusted. Called by the readers of flight
// records and of traces.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

// Names of files that were not read, or not wholly, with the reasons. A sentence is the name and the reason.
using UnreadFiles = std::vector<std::pair<std::string, std::string>>;

// Reads a regular file; does not follow a link. *written: its modification time in seconds. kSystem, or kArg
// with the reason if it has more than `most` bytes or is not a regular file.
weft::Status read_text(const std::string& path, size_t most, std::string* text, int64_t* written);

// Replaces control characters, including two-byte ones, because terminals show these texts.
std::string printable(std::string text);
