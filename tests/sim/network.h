/// The way from simulated processes to an S3 server that is simulated too. The seed decides what
/// becomes of a request.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/world.h"
#include "storage/s3/client.h"
#include "support/s3_objects.h"

namespace varve::sim {

/// | a request may be     | the server         | the client
/// |----------------------|--------------------|-------------------------------------
/// | lost                 | gets nothing       | has no answer, after a while
/// | late                 | carries it out     | had no answer long before
/// | answered in vain     | carries it out     | has no answer
/// | doubled              | carries it out now | has the answer to the first
/// |                      | and later again    |
/// | refused for now      | does nothing       | has a 503 or 500
/// | failed behind        | carries it out     | has a 500
class Network {
 public:
  /// One request in `trouble_one_in` meets trouble; 0: none does.
  Network(const Surroundings& around, std::uint64_t trouble_one_in)
      : around_(around), trouble_one_in_(trouble_one_in) {}

  /// Sends a request of a process, as s3::SendFunction does. Without a process: at once, and
  /// without trouble.
  Result<s3::HttpResponse> Send(Process* process, const s3::HttpRequest& request);

  /// Carries out all requests that are late.
  void DeliverLate();
  [[nodiscard]] test::S3Objects& server() { return server_; }

 private:
  struct Late {
    TimePoint due;
    test::S3Request request;
  };

  Result<s3::HttpResponse> Meet(const s3::HttpRequest& request, const test::S3Request& parsed);
  test::S3Answer Apply(const test::S3Request& request);
  void Delay(const test::S3Request& request);
  std::optional<test::S3Answer> Planted(const test::S3Request& request, bool lost);

  const Surroundings around_;
  const std::uint64_t trouble_one_in_;
  test::S3Objects server_;
  std::vector<Late> late_;
  std::map<std::string, std::string> tokens_;  // Of the uploads that were begun last, by name.
};

}  // namespace varve::sim
