// Fuzzer of model files: makes almost valid changes, opens each file, and runs accepted models.
//
//   fuzz FOLDER [--seed S] [--first N] [--count N]   cases N, N + 1, ... from the *.bnn files of a folder; prints JSON
//   fuzz FOLDER [--seed S] --case N                  one case, with the message of the engine
//   ... --write FILE                                 writes all cases to a file, each after its size (u32)
//
// A case depends only on the folder, the seed and its number. tools/native/fuzz_engine.py builds this program with the
// sanitizers. The program ends if a case takes 2 seconds of CPU time, needs too much memory, gives other values without
// fusion, or if a sanitizer reports an error. The last line then has seed and case.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capi.h"
#include "fuzz_cases.h"

using namespace lcrbnn;

// Otherwise freed memory that the sanitizer keeps would count as memory of the engine.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16:allocator_may_return_null=1"; }

namespace {

const int kSeconds = 2;
const long kPeak = 512 << 10;  // KiB, of the process
const double kMostWork = 2e6;  // multiplications; larger models are not run
const uint64_t kMostBytes = 64 << 20;

double work_of(const Graph& graph) {
  double sum = double(graph.values[0].numbers());
  for (const Node& node : graph.nodes) {
    const Shape in = node.inputs ? graph.values[size_t(node.in[0])] : Shape{1, 1, 1};
    const double taps = double(node.window.kh) * node.window.kw, made = double(node.out.numbers());
    const bool conv = node.op == Op::conv || node.op == Op::bconv || node.op == Op::wconv;
    sum += double(in.numbers()) + made * taps * (conv ? in.c / node.window.groups : node.op == Op::matmul ? in.c : 1);
  }
  return sum;
}

struct Counts {
  uint64_t cases = 0, refused = 0, no_memory = 0, accepted = 0, run = 0;
  double longest = 0;
  std::map<std::string, uint64_t> reasons{};
};

// Returns the message without numbers and names from the file.
std::string reason(const char* message) {
  std::string made;
  for (const char* c = message; *c; ++c)
    if (*c == '\\' || *c == '"') made += '/';
    else if (*c < '0' || *c > '9') made += *c;
    else if (made.empty() || made.back() != '#') made += '#';
  for (const char* cut : {"unknown key", "unknown op", "unknown type"}) {
    const size_t at = made.find(cut);
    if (at != std::string::npos) made.resize(at + strlen(cut));
  }
  return made;
}

bool same(const std::vector<float>& one, const std::vector<float>& other) {
  for (size_t i = 0; i < one.size(); ++i)
    if (memcmp(&one[i], &other[i], 4) != 0 && (one[i] == one[i] || other[i] == other[i])) return false;
  return true;
}

// Runs a model once; every fourth model is also run in another mode, which must give the same bits.
bool run(lcrbnn_model* model, const uint8_t* data, size_t size, Random& random, Counts& counts) {
  lcrbnn_info info;
  lcrbnn_get_info(model, &info);
  for (int i = -1; i <= info.nodes; ++i)
    lcrbnn_node_name(model, i), lcrbnn_node_kernel(model, i), lcrbnn_node_op(model, i);
  for (int i = -1; i <= info.classes; ++i) lcrbnn_class_name(model, i);
  int32_t shape[3];
  for (int i = -1; i <= info.outputs; ++i) lcrbnn_output_name(model, i), lcrbnn_output_shape(model, i, shape);
  Graph graph;
  Error error;
  if (!read_graph(data, size, graph, error)) return false;
  if (work_of(graph) > kMostWork || info.work_bytes > kMostBytes) return true;
  ++counts.run;
  const size_t numbers = graph.values[0].numbers();
  std::unique_ptr<float[]> image(new float[numbers]);
  static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 3e38f};
  const bool some = random.chance(20);
  for (size_t i = 0; i < numbers; ++i)
    image[i] = some && random.chance(10) ? odd[random.below(8)] : float(random.below(2001)) / 500 - 2;
  std::vector<float> one(size_t(info.output_numbers)), other(one);
  if (lcrbnn_run(model, image.get(), 1, one.data(), random.chance(5) ? 2 : 1, nullptr, 0)) return false;
  if (random.chance(75)) return true;
  if (lcrbnn_open_memory(data, size, LCRBNN_UNFUSED, random.chance(50) ? "scalar" : nullptr, &model, nullptr, 0))
    return false;
  const bool fine = lcrbnn_run(model, image.get(), 1, other.data(), 1, nullptr, 0) == LCRBNN_OK && same(one, other);
  lcrbnn_close(model);
  return fine;
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Ends the process with a signal if the next case takes too long, in CPU time or waiting.
void watch(int limit) {
  const itimerval timer{{0, 0}, {limit, 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
  alarm(unsigned(30 * limit));
}

// Returns false if the engine misbehaves on a case; writes its message to `message`.
bool try_case(const Bytes& file, uint64_t seed, uint64_t number, Counts& counts, std::string& message) {
  std::unique_ptr<uint8_t[]> data(new uint8_t[file.size()]);  // exact size: the sanitizer sees reads past it
  if (!file.empty()) memcpy(data.get(), file.data(), file.size());
  Random random{~(seed * 0xD1342543DE82EF95 + number)};
  char text[320] = "accepted";
  lcrbnn_model* model = nullptr;
  bool fine = true;
  const double before = seconds();
  watch(kSeconds);
  const int code = lcrbnn_open_memory(data.get(), file.size(), 0, nullptr, &model, text, sizeof text);
  if (code == LCRBNN_OK) {
    fine = run(model, data.get(), file.size(), random, counts);
    lcrbnn_close(model);
  }
  watch(0);
  counts.longest = std::max(counts.longest, seconds() - before);
  ++counts.cases;
  ++(code == LCRBNN_OK ? counts.accepted : code == LCRBNN_BAD_FILE ? counts.refused : counts.no_memory);
  if (code) ++counts.reasons[reason(text)];
  message = fine ? text : "accepted, but it does not run, or not the same when nothing is fused";
  if (code != LCRBNN_OK && (model || code == LCRBNN_BAD_CALL)) return false;
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss > kPeak) message = "the process became too large", fine = false;
  return fine;
}

struct Options {
  const char* folder = nullptr;
  const char* write = nullptr;
  uint64_t seed = 0, first = 0, count = 1000;
  bool single = false;
};

bool find_models(const char* folder, std::vector<Model>& models) {
  DIR* list = opendir(folder);
  if (!list) return false;
  std::vector<std::string> names;
  while (const dirent* entry = readdir(list)) {
    const std::string name = entry->d_name;
    if (name.size() > 4 && name.compare(name.size() - 4, 4, ".bnn") == 0) names.push_back(name);
  }
  closedir(list);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    models.emplace_back();
    if (!load(std::string(folder) + "/" + name, models.back())) return false;
  }
  return !models.empty();
}

int all_cases(const Options& options, volatile uint64_t* now) {
  std::vector<Model> models;
  if (!find_models(options.folder, models)) return fprintf(stderr, "there are no models in %s\n", options.folder), 1;
  FILE* out = options.write ? fopen(options.write, "wb") : nullptr;
  if (options.write && !out) return perror(options.write), 1;
  Counts counts;
  for (uint64_t i = options.first; i < options.first + options.count; ++i) {
    *now = i;
    const Bytes file = make(models, options.seed, i);
    if (out) {
      uint8_t size[4];
      write_le(size, 4, file.size());
      fwrite(size, 1, 4, out);
      if (!file.empty()) fwrite(file.data(), 1, file.size(), out);
    }
    std::string message;
    const bool fine = try_case(file, options.seed, i, counts, message);
    if (options.single || !fine) fprintf(fine ? stdout : stderr, "%s\n", message.c_str());
    if (!fine) return 1;
  }
  if (out && fclose(out) != 0) return perror(options.write), 1;
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  if (options.single) return 0;
  printf(
      "{\"cases\": %llu, \"refused\": %llu, \"no_memory\": %llu, \"accepted\": %llu, \"run\": %llu, \"longest_s\": "
      "%.4f, \"peak_mib\": %.0f, \"reasons\": {",
      (unsigned long long)counts.cases, (unsigned long long)counts.refused, (unsigned long long)counts.no_memory,
      (unsigned long long)counts.accepted, (unsigned long long)counts.run, counts.longest,
      double(usage.ru_maxrss) / 1024);
  const char* comma = "";
  for (const auto& [text, count] : counts.reasons)
    printf("%s\"%s\": %llu", comma, text.c_str(), (unsigned long long)count), comma = ", ";
  printf("}}\n");
  return 0;
}

bool parse(int argc, char** argv, Options& o) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.compare(0, 2, "--") != 0) {
      o.folder = argv[i];
      continue;
    }
    if (++i == argc) return false;
    const uint64_t number = strtoull(argv[i], nullptr, 10);
    if (word == "--seed") o.seed = number;
    else if (word == "--first") o.first = number;
    else if (word == "--count") o.count = number;
    else if (word == "--case") o.first = number, o.count = 1, o.single = true;
    else if (word == "--write") o.write = argv[i];
    else return false;
  }
  return o.folder;
}

}  // namespace

// A child process does the work, so that the case can be named after a crash.
int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options))
    return fprintf(stderr, "usage: fuzz FOLDER [--seed S] [--first N] [--count N] [--case N] [--write FILE]\n"), 2;
  void* page = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return perror("mmap"), 1;
  volatile uint64_t* now = static_cast<volatile uint64_t*>(page);
  const pid_t child = fork();
  if (child < 0) return perror("fork"), 1;
  if (child == 0) return all_cases(options, now);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  const bool late = WIFSIGNALED(status) && (WTERMSIG(status) == SIGPROF || WTERMSIG(status) == SIGALRM);
  fprintf(stderr, "seed %llu case %llu: %s\n", (unsigned long long)options.seed, (unsigned long long)*now,
          late ? "it took too long" : "it failed");
  return 1;
}
