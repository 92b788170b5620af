// Included before every source of a wheel (packaging/build says so to the compiler).
//
// g++ 12 binds std::condition_variable::wait to the version of libstdc++ 12, where it became
// noexcept. It is the only symbol of ours that libstdc++ 11 lacks. Bound to its version before
// that, which every later libstdc++ has too, the wheel also runs on systems with glibc 2.34 (Red
// Hat 9 and its kin).
#pragma once
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
