#include "base/events.h"

#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace varve {
namespace {

/// Takes the events of this process while it lives.
class Taken {
 public:
  Taken() {
    SetEventFunction([this](const Event& event) { messages_.push_back(event.message); });
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() { SetEventFunction({}); }

  /// Returns all that were reported before.
  std::vector<std::string> Messages() {
    SetEventFunction({});
    return messages_;
  }

 private:
  std::vector<std::string> messages_;  // Of the one thread that takes events.
};

TEST(Events, ComeInOrderToTheFunctionThatIsSet) {
  Taken taken;
  EXPECT_TRUE(EventsAreTaken());
  ReportEvent({.message = "first"});
  ReportEvent({.message = "second"});
  EXPECT_EQ(taken.Messages(), (std::vector<std::string>{"first", "second"}));
}

TEST(Events, AreDroppedWhereNobodyTakesThem) {
  EXPECT_FALSE(EventsAreTaken());
  ReportEvent({.message = "lost"});
  Taken taken;
  EXPECT_TRUE(taken.Messages().empty());
}

TEST(Events, AFunctionThatThrowsOrWaitsHarmsNobodyWhoReports) {
  std::promise<void> go_on;
  std::vector<std::string> messages;
  SetEventFunction([&, wait = go_on.get_future().share()](const Event& event) {
    wait.wait();
    messages.push_back(event.message);
    throw std::runtime_error("no");
  });
  std::mutex held;  // As a module that reports holds its lock.
  {
    const std::scoped_lock lock(held);
    for (int i = 0; i < 10000; ++i) {
      ReportEvent({.message = std::to_string(i)});
    }
  }
  go_on.set_value();
  SetEventFunction({});
  ASSERT_GE(messages.size(), 1000U);
  ASSERT_LT(messages.size(), 10000U) << "the queue has an end";
  EXPECT_EQ(messages[0], "0");
  EXPECT_EQ(messages[999], "999");
}

TEST(Events, TheLastOneSaysHowManyWereDropped) {
  std::promise<void> go_on;
  std::vector<std::string> messages;
  SetEventFunction([&, wait = go_on.get_future().share()](const Event& event) {
    wait.wait();
    messages.push_back(event.message);
  });
  for (int i = 0; i < 10000; ++i) {
    ReportEvent({.message = "x"});
  }
  go_on.set_value();
  SetEventFunction({});
  const std::size_t taken = messages.size() - 1;
  EXPECT_EQ(messages.back(),
            "events came too fast: " + std::to_string(10000 - taken) + " are lost");
}

TEST(Events, ALineHasTimeLevelRankMessageAndFields) {
  Event event{.level = EventLevel::kWarning,
              .rank = 3,
              .message = "save a/b: attempt 1\nhas failed",
              .fields = {{"turn", "7"}}};
  event.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1700000000123));
  EXPECT_EQ(ToLine(event),
            "2023-11-14T22:13:20.123Z WARNING rank 3 save a/b: attempt 1 has failed turn=7");
}

}  // namespace
}  // namespace varve
