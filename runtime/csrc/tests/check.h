// Checks of the native code: a program of TEST functions, of which it runs those that it is given
// by name. The first failure ends the program with a line that says where.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CHECK_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (false)

// Checks that a text, or an optional one, contains a part.
#define CHECK_TEXT(text, part)                                                     \
  do {                                                                             \
    const std::string found = hloom::test::TextOf(text);                           \
    if (found.find(part) == std::string::npos) {                                   \
      std::fprintf(stderr, "%s:%d: got: %s\n", __FILE__, __LINE__, found.c_str()); \
      std::_Exit(1);                                                               \
    }                                                                              \
  } while (false)

// Defines a test function.
#define TEST(name)                                                                       \
  static void name();                                                                    \
  static const bool name##_is_listed = hloom::test::Tests().emplace(#name, name).second; \
  static void name()

namespace hloom::test {

inline std::string TextOf(const std::string& text) { return text; }
inline std::string TextOf(const std::optional<std::string>& text) {
  return text.value_or("no error");
}

// By name.
inline std::map<std::string, void (*)()>& Tests() {
  static std::map<std::string, void (*)()> tests;
  return tests;
}

// Runs the tests that the arguments from `first` on name; without any, prints all names.
inline int Run(int argc, char** argv, int first = 1) {
  if (argc == first) {
    for (const auto& [name, test] : Tests()) std::puts(name.c_str());
  }
  for (int i = first; i < argc; ++i) Tests().at(argv[i])();
  return 0;
}

}  // namespace hloom::test

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CHECK_H_
