// A strict JSON parser (RFC 8259): UTF-8 only, no comments, no duplicate keys, limited depth and size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace lcrbnn {

enum class JsonKind : uint8_t { null, boolean, number, text, list, object };

struct JsonValue {
  JsonKind kind;
  bool whole;      // a number without point and exponent that fits into 53 bits
  uint32_t count;  // number of members, or number of bytes of a text
  uint32_t key;    // for a member of an object: position of its key in `text_`
  uint32_t next;   // index of the next member, 0 for none
  union {
    double number;
    uint32_t first;  // index of the first member
    uint32_t start;  // position of a text in `text_`; it ends with a zero byte
    bool truth;
  };
};

class Json {
 public:
  bool parse(const uint8_t* data, size_t size, Error&);
  const JsonValue& root() const { return values_[0]; }
  const JsonValue* find(const JsonValue& object, const char* key) const;
  const JsonValue* first(const JsonValue& value) const { return value.count ? &values_[value.first] : nullptr; }
  const JsonValue* next(const JsonValue& value) const { return value.next ? &values_[value.next] : nullptr; }
  const char* key(const JsonValue& member) const { return text_.data() + member.key; }
  const char* text(const JsonValue& value) const { return text_.data() + value.start; }

 private:
  friend struct JsonParser;
  std::vector<JsonValue> values_;
  std::string text_;
};

}  // namespace lcrbnn
