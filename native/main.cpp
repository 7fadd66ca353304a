// lcrbnn-run model.bnn [--threads N] [--repeat N] [--unfused] [--kernel NAME] < images: raw float32, [n][h][w][c].
// Prints one line of numbers per image: the logits, or all outputs one after another. With --repeat, it prints the time of each node and of the whole run instead, for
// an input of zeros if there is no input.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "capi.h"

namespace {

// Control characters, directional marks and overrides, and line separators: the same characters as in
// lcrbnn/runs/terminal.py are escaped.
bool is_unsafe(unsigned code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
         code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
         (code >= 0xd800 && code < 0xe000);
}

// Returns the number of bytes of the UTF-8 character at `text`, and its code; 0 and the first byte if it is not UTF-8.
int decode(const unsigned char* text, unsigned& code) {
  const unsigned first = text[0];
  const int length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  unsigned whole = length < 2 ? first : first & (0x7fu >> length);
  code = first;
  for (int i = 1; i < length; ++i) {
    if ((text[i] & 0xc0) != 0x80) return 0;  // also at the end of the text
    whole = whole << 6 | (text[i] & 0x3fu);
  }
  code = whole;
  return length;
}

// Prints escaped text. All output except the numbers uses it, because names from files must not control the terminal.
__attribute__((format(printf, 2, 3))) void say(FILE* to, const char* format, ...) {
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  std::string text(size_t(vsnprintf(nullptr, 0, format, list)) + 1, '\0');
  vsnprintf(&text[0], text.size(), format, again);
  va_end(again);
  va_end(list);
  std::string shown;
  for (const char* at = text.c_str(); *at;) {
    unsigned code;
    const int length = decode(reinterpret_cast<const unsigned char*>(at), code);
    if (length && !is_unsafe(code)) {
      shown.append(at, size_t(length));
    } else {
      char escape[8];
      snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : "\\u%04x", code & 0xffff);
      shown += escape;
    }
    at += length ? length : 1;
  }
  fwrite(shown.data(), 1, shown.size(), to);
}

// Prints the usage: to stdout with code 0 if the user asked for it, else to stderr with code 2.
int usage(bool asked) {
  say(asked ? stdout : stderr,
      "usage: lcrbnn-run model.bnn [--threads N] [--repeat N] [--unfused] [--kernel NAME] < float32 images\n");
  return asked ? 0 : 2;
}

std::vector<char> read_bytes(FILE* from) {
  std::vector<char> all;
  char block[1 << 14];
  for (size_t got; (got = fread(block, 1, sizeof block, from)) > 0;) all.insert(all.end(), block, block + got);
  return all;
}

// Parses an integer from 1 to 2^20 without trailing characters.
bool read_count(const char* option, const char* text, int& into) {
  char* end;
  const long number = strtol(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || number < 1 || number > 1 << 20) {
    say(stderr, "%s must be a whole number from 1 to %d; got '%s'\n", option, 1 << 20, text);
    return false;
  }
  into = int(number);
  return true;
}

// Prints median and minimum of `repeat` runs, and the time per node.
int show_times(lcrbnn_model* model, const lcrbnn_info& info, const float* images, size_t n, float* outputs, int threads,
               int repeat) {
  using clock = std::chrono::steady_clock;
  std::vector<double> times;
  lcrbnn_run(model, images, n, outputs, threads, nullptr, 0);
  lcrbnn_times(model, nullptr, 1);
  for (int i = 0; i < repeat; ++i) {
    const auto before = clock::now();
    lcrbnn_run(model, images, n, outputs, threads, nullptr, 0);
    times.push_back(std::chrono::duration<double, std::milli>(clock::now() - before).count());
  }
  std::vector<double> seconds(static_cast<size_t>(info.nodes));
  lcrbnn_times(model, seconds.data(), 0);
  for (int i = 0; i < info.nodes; ++i)
    if (seconds[size_t(i)] > 0)
      say(stdout, "%9.3f ms  %-10s %-14s %s\n", seconds[size_t(i)] * 1e3, lcrbnn_node_op(model, i),
          lcrbnn_node_kernel(model, i), lcrbnn_node_name(model, i));
  std::sort(times.begin(), times.end());
  say(stdout, "%9.3f ms  median of %d runs of %zu image%s, best %.3f ms, %d thread%s\n", times[times.size() / 2],
      repeat, n, n == 1 ? "" : "s", times[0], threads, threads == 1 ? "" : "s");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char *path = nullptr, *kernel = nullptr;
  int threads = 1, repeat = 0, flags = 0;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (!strcmp(argv[i], "--threads") && more) {
      if (!read_count("--threads", argv[++i], threads)) return 2;
    } else if (!strcmp(argv[i], "--repeat") && more) {
      if (!read_count("--repeat", argv[++i], repeat)) return 2;
    } else if (!strcmp(argv[i], "--kernel") && more) kernel = argv[++i];
    else if (!strcmp(argv[i], "--unfused")) flags = LCRBNN_UNFUSED;
    else if (argv[i][0] != '-' && !path) path = argv[i];
    else return usage(!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"));
  }
  if (!path) return usage(false);
  char message[320] = "";
  lcrbnn_model* model = nullptr;
  if (lcrbnn_open(path, flags, kernel, &model, message, sizeof message)) {
    say(stderr, "%s: %s\n", path, message);
    return 2;
  }
  lcrbnn_info info;
  lcrbnn_get_info(model, &info);
  const size_t numbers = size_t(info.height) * size_t(info.width) * size_t(info.channels),
               out = size_t(info.output_numbers);
  std::vector<char> bytes;
  if (!repeat || !isatty(fileno(stdin))) bytes = read_bytes(stdin);
  if (repeat && bytes.empty()) bytes.resize(numbers * sizeof(float));
  const size_t n = bytes.size() / (numbers * sizeof(float));
  std::vector<float> images(n * numbers);
  int code = 0;
  if (n == 0 || bytes.size() % (numbers * sizeof(float))) {
    say(stderr, "the images must be a multiple of %zu bytes (%d x %d x %d float32); got %zu\n",
        numbers * sizeof(float), info.height, info.width, info.channels, bytes.size());
    code = 2;
  } else {
    memcpy(images.data(), bytes.data(), bytes.size());
    std::vector<float> outputs(n * out);
    if (lcrbnn_run(model, images.data(), n, outputs.data(), threads, message, sizeof message)) {
      say(stderr, "%s\n", message);
      code = 2;
    } else if (repeat > 0) {
      code = show_times(model, info, images.data(), n, outputs.data(), threads, repeat);
    } else {
      for (size_t i = 0; i < n; ++i)
        for (size_t c = 0; c < out; ++c) printf("%.9g%c", double(outputs[i * out + c]), c + 1 < out ? ' ' : '\n');
    }
  }
  lcrbnn_close(model);
  if (fflush(stdout) || ferror(stdout)) {
    say(stderr, "the outputs cannot be written: %s\n", strerror(errno));
    return 1;
  }
  return code;
}
