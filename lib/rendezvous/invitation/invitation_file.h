// The file of a shared folder through which rank 0 gives the other ranks its store's invitation
// (WEFT_STORE=file:///folder). Only its owner can read it. Used by StoreExchange. Threads: one thread at a
// time.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "rendezvous/invitation/invitation.h"

namespace weft {

class InvitationFile {
 public:
  // folder: an absolute path. The file's name follows from this process's user, the job and the number of the
  // communicator. munge: encrypts the file where munge runs, so that the file system need not be trusted with
  // the key.
  InvitationFile(std::string folder, const std::string& job, uint64_t sequence, bool munge = false);
  // Removes the file that publish() has written, unless another process has replaced it.
  ~InvitationFile();
  InvitationFile(const InvitationFile&) = delete;
  InvitationFile& operator=(const InvitationFile&) = delete;

  // Writes the file at once as a whole, in place of one that a job left when it crashed. kArg: there is no
  // such folder. kSystem: this process cannot write there. kAuth: the file does not belong to this user.
  Status publish(const Invitation& invitation);
  // Reads the file. *why_not, if not empty, says why there is no invitation yet; it is then unchanged. The
  // error concerns the folder.
  Status read(Invitation* invitation, std::string* why_not) const;

 private:
  Status open_folder(Fd* folder) const;
  std::string path() const;

  const std::string folder_;
  const std::string name_;
  const bool munge_;
  bool published_ = false;
  dev_t device_ = 0;  // of the published file
  ino_t inode_ = 0;
};

}  // namespace weft
