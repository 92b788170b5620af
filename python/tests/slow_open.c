/* For LD_PRELOAD: makes opening some files slow on demand; see slow_open.py.
 *
 * SLOW_OPEN is a glob over paths that are opened for reading, SLOW_OPEN_TO_WRITE over those opened for
 * writing, SLOW_OPEN_MARK a path. An open of such a file makes MARK and waits
 * until MARK.go is there. One that begins after that takes a minute. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*opener)(const char*, int, ...);

static opener real_open(void) { return (opener)dlsym(RTLD_NEXT, "open"); }

static void wait_for_go(void) {
  const char* const mark = getenv("SLOW_OPEN_MARK");
  char go[4096];
  struct stat info;
  snprintf(go, sizeof(go), "%s.go", mark);
  if (stat(go, &info) == 0) {
    sleep(60);
    return;
  }
  close(real_open()(mark, O_CREAT | O_WRONLY, 0666));
  while (stat(go, &info) != 0) {
    usleep(5000);
  }
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const int reads = (flags & O_ACCMODE) == O_RDONLY;
  const char* const slow = getenv(reads ? "SLOW_OPEN" : "SLOW_OPEN_TO_WRITE");
  if (slow != NULL && (flags & (O_DIRECT | O_DIRECTORY)) == 0 && fnmatch(slow, path, 0) == 0) {
    wait_for_go();
  }
  return real_open()(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open(path, flags, mode);
}
