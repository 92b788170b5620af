// A system that refuses memory at each allocation of a call that copies between two devices and the
// host: whatever happens, no copy is under way when the call is over.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/guarded.h"
#include "device/cuda_devices.h"
#include "support/device_memory.h"
#include "support/exhaustion.h"
#include "support/status_matchers.h"

namespace varve::cuda_devices_memory_test {
namespace {

using test::CanRefuse;
using test::Exhaustion;
using test::IsOk;
using test::OnDevice;
using test::Pages;
using test::RunOf;
using test::Subject;

constexpr std::size_t kBytes = 100'000;

const CudaDriver& StandIn() { return **CudaDriver::Get(); }

/// A function of the stand-in, to which no memory is refused: a driver has its own.
template <auto kFunction>
struct Unrefused;
template <class... Arguments, int (*CudaDriver::*kFunction)(Arguments...)>
struct Unrefused<kFunction> {
  static int Call(Arguments... arguments) {
    const test::Elsewhere elsewhere;
    return (StandIn().*kFunction)(arguments...);
  }
  static void PutInto(CudaDriver* driver) { driver->*kFunction = Call; }
};

const CudaDriver& Driver() {
  static const CudaDriver driver = [] {
    CudaDriver made = StandIn();
    Unrefused<&CudaDriver::context_push>::PutInto(&made);
    Unrefused<&CudaDriver::stream_synchronize>::PutInto(&made);
    Unrefused<&CudaDriver::event_create>::PutInto(&made);
    Unrefused<&CudaDriver::event_destroy>::PutInto(&made);
    Unrefused<&CudaDriver::event_record>::PutInto(&made);
    Unrefused<&CudaDriver::event_synchronize>::PutInto(&made);
    Unrefused<&CudaDriver::copy_to_host_async>::PutInto(&made);
    return made;
  }();
  return driver;
}

/// Moves of two devices.
class TwoDevices {
 public:
  TwoDevices() : devices_(CudaDevices::MakeForTest(Driver())) {
    EXPECT_TRUE(IsOk(Move()));  // The devices are ready.
  }

  Status Move() { return devices_->Move(Direction::kToHost, moves_); }

  /// Moves while the system refuses a call, or it and all later ones. Returns whether it was made.
  bool MoveWithout(std::uint64_t call, bool forever) {
    const Subject subject(0);
    const Exhaustion exhaustion({test::Resource::kMemory, call, forever, 0});
    outcome_ = Guarded([&] { return Move(); });
    return Exhaustion::met();
  }

  [[nodiscard]] const Status& outcome() const { return outcome_; }
  [[nodiscard]] bool arrived() const {
    return host_.content().substr(0, 2 * kBytes) == zero_.content() + one_.content();
  }

 private:
  const OnDevice zero_{0, std::string(kBytes, 'a')};
  const OnDevice one_{1, std::string(kBytes, 'b')};
  const Pages host_{2 * kBytes};
  const std::unique_ptr<CudaDevices> devices_;
  const std::vector<DeviceMove> moves_{RunOf(0, zero_.data(), host_.data(), kBytes),
                                       RunOf(1, one_.data(), host_.data() + kBytes, kBytes)};
  Status outcome_;
};

/// Moves without each call in turn, with a driver whose function fails at its first call.
void ExpectThatNothingIsUnderWay(const char* failing) {
  TwoDevices devices;
  fake_cuda_slow_copies(2000);
  for (const bool forever : {false, true}) {
    bool met = true;
    for (std::uint64_t call = 0; met; ++call) {
      fake_cuda_fail(failing, 999, 0);
      met = devices.MoveWithout(call, forever);
      ASSERT_EQ(fake_cuda_counts().bytes_queued, 0U)
          << "call " << call << (forever ? " and all later ones" : "");
      EXPECT_TRUE(!devices.outcome().ok() || devices.arrived());
      fake_cuda_fail(failing, 0, 0);
    }
  }
  fake_cuda_slow_copies(0);
  EXPECT_TRUE(IsOk(devices.Move()));
  EXPECT_TRUE(devices.arrived());
}

TEST(CudaDevicesMemory, NothingIsUnderWayWhereMemoryRunsOut) {
  if (!CanRefuse()) {
    GTEST_SKIP() << "the sanitizer has its own operator new";
  }
  ExpectThatNothingIsUnderWay("none");
}

TEST(CudaDevicesMemory, NothingIsUnderWayWhereMemoryForAMessageRunsOut) {
  if (!CanRefuse()) {
    GTEST_SKIP() << "the sanitizer has its own operator new";
  }
  ExpectThatNothingIsUnderWay("cuEventSynchronize");
}

}  // namespace
}  // namespace varve::cuda_devices_memory_test
