// One kernel for each size of elements; they differ in the loads and stores alone. In C it is
//
//   piece = table.pieces[blockIdx.y];
//   for (i = blockIdx.x * blockDim.x + threadIdx.x; i < piece.count; i += gridDim.x * blockDim.x) {
//     k = piece.first + i;
//     x = k % piece.inner;
//     y = k / piece.inner;
//     a = piece.device + x * piece.device_inner + y * piece.device_outer;
//     b = piece.host + x * piece.host_inner + y * piece.host_outer;
//     table.to_host ? *b = *a : *a = *b;
//   }
//
// with four elements of a thread under way at once: reads of host memory take microseconds. PTX 6.0
// for sm_50 is what the drivers of CUDA 9 and all later ones compile. Written by hand, for there is
// no CUDA toolkit where Varve is built.

#include "device/move_kernel.h"

#include <algorithm>
#include <array>

namespace varve {
namespace {

constexpr int kUnroll = 4;

/// Loads and stores of one size; # stands for the number of the element in the loop.
struct Width {
  std::uint32_t item;
  const char* registers;
  const char* load;
  const char* store;
};

constexpr std::array<Width, 5> kWidths{{
    {1, ".reg .b16 v#;", "ld.global.u8 v#, [s#];", "st.global.u8 [t#], v#;"},
    {2, ".reg .b16 v#;", "ld.global.u16 v#, [s#];", "st.global.u16 [t#], v#;"},
    {4, ".reg .b32 v#;", "ld.global.u32 v#, [s#];", "st.global.u32 [t#], v#;"},
    {8, ".reg .b64 v#;", "ld.global.u64 v#, [s#];", "st.global.u64 [t#], v#;"},
    {16, ".reg .b32 v#, w#, x#, y#;", "ld.global.v4.u32 {v#, w#, x#, y#}, [s#];",
     "st.global.v4.u32 [t#], {v#, w#, x#, y#};"},
}};

std::string Numbered(std::string text, int number) {
  for (std::size_t at = text.find('#'); at != std::string::npos; at = text.find('#', at)) {
    text.replace(at, 1, std::to_string(number));
  }
  return "  " + text + "\n";
}

/// Computes the addresses s# and t# of element `i#` of the piece.
std::string Addresses(int number) {
  std::string text;
  for (const char* line : {
           "add.u32 k#, i#, first;",
           "div.u32 q#, k#, inner;",
           "mul.lo.u32 r#, q#, inner;",
           "sub.u32 r#, k#, r#;",
           "cvt.u64.u32 e#, r#;",
           "cvt.u64.u32 f#, q#;",
           "mad.lo.s64 a#, e#, device_inner, device;",
           "mad.lo.s64 a#, f#, device_outer, a#;",
           "mad.lo.s64 b#, e#, host_inner, host;",
           "mad.lo.s64 b#, f#, host_outer, b#;",
           "selp.u64 s#, a#, b#, to_host;",
           "selp.u64 t#, b#, a#, to_host;",
       }) {
    text += Numbered(line, number);
  }
  return text;
}

std::string Kernel(const Width& width) {
  std::string text = ".visible .entry " + MoveKernelName(width.item) +
                     "(.param .align 8 .b8 table[" + std::to_string(sizeof(MoveTable)) + "]) {\n";
  for (int n = 0; n < kUnroll; ++n) {
    text += Numbered(".reg .u32 i#, k#, q#, r#;", n);
    text += Numbered(".reg .u64 e#, f#, a#, b#, s#, t#;", n);
    text += Numbered(width.registers, n);
  }
  text += R"(  .reg .u32 inner, first, count, step, all, row, x, y;
  .reg .u64 base, device, host, offset;
  .reg .s64 device_inner, device_outer, host_inner, host_outer;
  .reg .pred to_host, more;
  mov.b64 base, table;
  ld.param.u32 x, [table];
  setp.ne.u32 to_host, x, 0;
  mov.u32 row, %ctaid.y;
  mul.wide.u32 offset, row, 64;
  add.u64 base, base, offset;
  ld.param.u64 device, [base+8];
  ld.param.u64 host, [base+16];
  ld.param.s64 device_inner, [base+24];
  ld.param.s64 device_outer, [base+32];
  ld.param.s64 host_inner, [base+40];
  ld.param.s64 host_outer, [base+48];
  ld.param.u32 inner, [base+56];
  ld.param.u32 first, [base+60];
  ld.param.u32 count, [base+64];
  mov.u32 x, %ntid.x;
  mov.u32 y, %nctaid.x;
  mul.lo.u32 step, x, y;
  mov.u32 y, %ctaid.x;
  mul.lo.u32 i0, x, y;
  mov.u32 x, %tid.x;
  add.u32 i0, i0, x;
  mul.lo.u32 all, step, )" +
          std::to_string(kUnroll - 1) + R"(;
next:
  add.u32 x, i0, all;
  setp.lt.u32 more, x, count;
  @!more bra single;
)";
  for (int n = 1; n < kUnroll; ++n) {
    text += "  add.u32 i" + std::to_string(n) + ", i" + std::to_string(n - 1) + ", step;\n";
  }
  for (int n = 0; n < kUnroll; ++n) {
    text += Addresses(n) + Numbered(width.load, n);
  }
  for (int n = 0; n < kUnroll; ++n) {
    text += Numbered(width.store, n);
  }
  text += "  add.u32 i0, i" + std::to_string(kUnroll - 1) + R"(, step;
  bra next;
single:
  setp.lt.u32 more, i0, count;
  @!more bra done;
)" + Addresses(0) +
          Numbered(width.load, 0) + Numbered(width.store, 0) + R"(  add.u32 i0, i0, step;
  bra single;
done:
  ret;
}
)";
  return text;
}

}  // namespace

std::string MoveKernelName(std::uint32_t item) { return "varve_move_" + std::to_string(item); }

std::string MoveKernel(std::uint32_t item) {
  const auto* const width = std::find_if(kWidths.begin(), kWidths.end(),
                                         [&](const Width& known) { return known.item == item; });
  return ".version 6.0\n.target sm_50\n.address_size 64\n" + Kernel(*width);
}

}  // namespace varve
