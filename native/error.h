// The error message of a call. Functions that can fail return false and store the message here.
#pragma once
#include <cstdarg>
#include <cstdio>

namespace lcrbnn {

struct Error {
  char text[320] = "";
  int code = 0;  // one of the error codes in capi.h

  // These return false, so that a check can be written as: return error.file("...").
  __attribute__((format(printf, 2, 3))) bool file(const char* format, ...) {
    va_list list;
    va_start(list, format);
    set(1, format, list);
    va_end(list);
    return false;
  }
  __attribute__((format(printf, 2, 3))) bool call(const char* format, ...) {
    va_list list;
    va_start(list, format);
    set(2, format, list);
    va_end(list);
    return false;
  }
  __attribute__((format(printf, 2, 3))) bool memory(const char* format, ...) {
    va_list list;
    va_start(list, format);
    set(3, format, list);
    va_end(list);
    return false;
  }

 private:
  void set(int kind, const char* format, va_list list) {
    code = kind;
    vsnprintf(text, sizeof text, format, list);
  }
};

}  // namespace lcrbnn
