#include "share/peer_link.h"

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "support/status_matchers.h"

namespace varve::peer_link_test {
namespace {

using test::FailsWith;
using test::IsOk;

/// Asks for bytes with a sum; the other side answers with `has_sum`.
Result<bool> Asked(bool has_sum) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  PeerLink asks(Socket(ends[0]), -1);
  PeerLink answers(Socket(ends[1]), -1);
  const std::vector<std::byte> sent(100, std::byte{7});
  std::jthread other([&] {
    const auto request = answers.NextRequest();
    ASSERT_TRUE(IsOk(request));
    ASSERT_TRUE(*request);
    EXPECT_EQ((*request)->range.end, 200U);
    EXPECT_TRUE(IsOk(answers.Answer(std::span(sent), has_sum)));
  });
  std::vector<std::byte> memory(100);
  const std::array<std::span<std::byte>, 2> parts{std::span(memory).first(30),
                                                  std::span(memory).subspan(30)};
  Result<bool> fetched = asks.Fetch({3, {100, 200}}, true, std::chrono::seconds(10), parts);
  EXPECT_EQ(memory, sent);
  return fetched;
}

TEST(PeerLink, BytesThatAgreeWithTheirSumAreTaken) {
  const auto fetched = Asked(true);
  ASSERT_TRUE(IsOk(fetched));
  EXPECT_TRUE(*fetched);
}

TEST(PeerLink, BytesThatDifferFromTheirSumAreNot) {
  EXPECT_TRUE(FailsWith(Asked(false), StatusCode::kDataLoss, {"changed on their way"}));
}

}  // namespace
}  // namespace varve::peer_link_test
