// Prints the version of the varve it was linked with; run.cmake compares it.
#include <iostream>

#include <varve/metadata.h>

int main() {
  std::cout << varve::Version() << '\n';
  return 0;
}
