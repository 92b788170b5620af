/* For LD_PRELOAD: a disk quota that is used up exactly where a name appears; see test_quota.py.
 *
 * While the file NO_QUOTA_NOW exists, renaming or linking to a path that matches the glob NO_QUOTA_AT
 * fails with EDQUOT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refused(const char* from, const char* to) {
  const char* const at = getenv("NO_QUOTA_AT");
  const char* const now = getenv("NO_QUOTA_NOW");
  if (at == NULL || now == NULL || fnmatch(at, to, 0) != 0 || access(now, F_OK) != 0 ||
      access(from, F_OK) != 0) {
    return 0;
  }
  errno = EDQUOT;
  return 1;
}

long syscall(long number, ...) {
  long a[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) {
    a[i] = va_arg(arguments, long);
  }
  va_end(arguments);
  if (number == SYS_renameat2 && refused((const char*)a[1], (const char*)a[3])) {
    return -1;
  }
  return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a[0], a[1], a[2], a[3], a[4],
                                                           a[5]);
}

int rename(const char* from, const char* to) {
  return refused(from, to) ? -1 : ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}

int link(const char* from, const char* to) {
  return refused(from, to) ? -1 : ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "link"))(from, to);
}

int linkat(int a, const char* from, int b, const char* to, int flags) {
  typedef int (*linker)(int, const char*, int, const char*, int);
  return refused(from, to) ? -1 : ((linker)dlsym(RTLD_NEXT, "linkat"))(a, from, b, to, flags);
}
