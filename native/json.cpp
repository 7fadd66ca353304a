#include "json.h"

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace lcrbnn {

static const int kDeepest = 16;
static const size_t kMostMembers = 512;  // maximum number of members per object, because keys are compared in pairs
static const size_t kMostValues = 1u << 23;
static const size_t kLongestNumber = 64;

struct JsonParser {
  Json& json;
  const uint8_t* at;
  const uint8_t* end;
  const uint8_t* begin;
  Error& error;

  bool fail(const char* what) {
    return error.file("the graph is not valid JSON: %s at byte %zu", what, size_t(at - begin));
  }

  void space() {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) ++at;
  }

  bool word(const char* text) {
    const size_t n = strlen(text);
    if (size_t(end - at) < n || memcmp(at, text, n) != 0) return fail("an unknown word");
    at += n;
    return true;
  }

  void put(uint32_t code) {
    std::string& out = json.text_;
    if (code < 0x80) {
      out += char(code);
    } else if (code < 0x800) {
      out += char(0xC0 | code >> 6), out += char(0x80 | (code & 63));
    } else if (code < 0x10000) {
      out += char(0xE0 | code >> 12), out += char(0x80 | (code >> 6 & 63)), out += char(0x80 | (code & 63));
    } else {
      out += char(0xF0 | code >> 18), out += char(0x80 | (code >> 12 & 63)), out += char(0x80 | (code >> 6 & 63)),
          out += char(0x80 | (code & 63));
    }
  }

  bool hex(uint32_t& code) {
    if (end - at < 4) return fail("a text without closing quote");
    code = 0;
    for (int i = 0; i < 4; ++i, ++at) {
      const uint8_t c = *at;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return fail("an invalid \\u escape");
      code = code << 4 | uint32_t(digit);
    }
    return true;
  }

  bool escape() {
    if (at == end) return fail("a text without closing quote");
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const uint8_t c = *at++;
    if (c == 'u') {
      uint32_t code = 0, low = 0;
      if (!hex(code)) return false;
      if (code >= 0xDC00 && code < 0xE000) return fail("an incomplete surrogate pair");
      if (code >= 0xD800 && code < 0xDC00) {
        if (end - at < 2 || at[0] != '\\' || at[1] != 'u') return fail("an incomplete surrogate pair");
        at += 2;
        if (!hex(low)) return false;
        if (low < 0xDC00 || low >= 0xE000) return fail("an incomplete surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      if (code == 0) return fail("a zero character in a text");
      put(code);
      return true;
    }
    const char* found = c ? strchr(from, c) : nullptr;
    if (!found) return fail("an unknown escape");
    json.text_ += to[found - from];
    return true;
  }

  // Copies one character of several bytes if it is valid UTF-8.
  bool wide() {
    const uint8_t c = *at;
    const int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
    if (!more || end - at <= more) return fail("invalid UTF-8");
    for (int i = 1; i <= more; ++i)
      if ((at[i] & 0xC0) != 0x80) return fail("invalid UTF-8");
    if ((c == 0xE0 && at[1] < 0xA0) || (c == 0xED && at[1] > 0x9F) || (c == 0xF0 && at[1] < 0x90) ||
        (c == 0xF4 && at[1] > 0x8F))
      return fail("invalid UTF-8");
    json.text_.append((const char*)at, size_t(more) + 1);
    at += more + 1;
    return true;
  }

  bool text(uint32_t& start, uint32_t& count) {
    if (at == end || *at != '"') return fail("a missing key");
    ++at;
    start = uint32_t(json.text_.size());
    for (;;) {
      if (at == end) return fail("a text without closing quote");
      const uint8_t c = *at;
      if (c == '"') break;
      if (c < 0x20) return fail("a control character");
      if (c == '\\') {
        ++at;
        if (!escape()) return false;
      } else if (c < 0x80) {
        json.text_ += char(c);
        ++at;
      } else if (!wide()) {
        return false;
      }
    }
    ++at;
    count = uint32_t(json.text_.size()) - start;
    json.text_ += '\0';
    return true;
  }

  bool digits() {
    const uint8_t* from = at;
    while (at < end && *at >= '0' && *at <= '9') ++at;
    return at > from;
  }

  bool number(JsonValue& value) {
    const uint8_t* from = at;
    bool whole = true;
    if (*at == '-') ++at;
    if (at < end && *at == '0') {
      ++at;
    } else if (!digits()) {
      return fail("an invalid number");
    }
    char buffer[kLongestNumber + 1];
    size_t point = kLongestNumber;
    if (at < end && *at == '.') {
      point = size_t(at - from);
      ++at;
      whole = false;
      if (!digits()) return fail("an invalid number");
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
      ++at;
      whole = false;
      if (at < end && (*at == '+' || *at == '-')) ++at;
      if (!digits()) return fail("an invalid number");
    }
    const size_t n = size_t(at - from);
    if (n >= kLongestNumber) return fail("a number with too many digits");
    memcpy(buffer, from, n);
    buffer[n] = 0;
#if !defined(__wasm__)
    // strtod needs the decimal point of the current locale
    if (point < n) buffer[point] = *localeconv()->decimal_point;
#endif
    char* stop;
    value.number = strtod(buffer, &stop);
    if (*stop || !std::isfinite(value.number)) return fail("a number that is too large");
    value.whole = whole && std::fabs(value.number) <= 9007199254740992.0;
    value.kind = JsonKind::number;
    return true;
  }

  // Fills values_[index]. It takes an index, because the vector reallocates.
  bool value(uint32_t index, int depth) {
    space();
    if (at == end) return fail("an unexpected end");
    JsonValue v{};
    const uint8_t c = *at;
    if (c == '{' || c == '[') {
      if (depth >= kDeepest) return fail("nesting deeper than 16");
      return members(index, depth, c == '{');
    }
    if (c == '"') {
      v.kind = JsonKind::text;
      if (!text(v.start, v.count)) return false;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      if (!number(v)) return false;
    } else if (c == 't' || c == 'f') {
      v.kind = JsonKind::boolean;
      v.truth = c == 't';
      if (!word(v.truth ? "true" : "false")) return false;
    } else if (c == 'n') {
      v.kind = JsonKind::null;
      if (!word("null")) return false;
    } else {
      return fail("an unknown word");
    }
    v.key = json.values_[index].key;
    v.next = json.values_[index].next;
    json.values_[index] = v;
    return true;
  }

  bool members(uint32_t index, int depth, bool object) {
    const uint8_t close = object ? '}' : ']';
    ++at;
    uint32_t first = 0, last = 0, count = 0;
    space();
    if (at < end && *at == close) {
      ++at;
    } else {
      for (;;) {
        uint32_t start = 0, length = 0;
        if (object) {
          space();
          if (!text(start, length)) return false;
          if (count >= kMostMembers) return fail("an object with too many members");
          for (uint32_t i = 0, m = first; i < count; ++i, m = json.values_[m].next)
            if (strcmp(json.text_.data() + json.values_[m].key, json.text_.data() + start) == 0)
              return fail("a duplicate key");
          space();
          if (at == end || *at != ':') return fail("a missing colon after a key");
          ++at;
        }
        if (json.values_.size() >= kMostValues) return fail("too many values");
        const uint32_t member = uint32_t(json.values_.size());
        json.values_.push_back(JsonValue{});
        json.values_[member].key = start;
        if (count++) {
          json.values_[last].next = member;
        } else {
          first = member;
        }
        last = member;
        if (!value(member, depth + 1)) return false;
        space();
        if (at == end) return fail("an unexpected end");
        if (*at == close) {
          ++at;
          break;
        }
        if (*at != ',') return fail("a missing comma between members");
        ++at;
      }
    }
    JsonValue& v = json.values_[index];
    v.kind = object ? JsonKind::object : JsonKind::list;
    v.count = count;
    v.first = first;
    return true;
  }
};

bool Json::parse(const uint8_t* data, size_t size, Error& error) {
  values_.assign(1, JsonValue{});
  text_.clear();
  JsonParser parser{*this, data, data + size, data, error};
  if (!parser.value(0, 0)) return false;
  parser.space();
  return parser.at == parser.end || parser.fail("extra data after the end");
}

const JsonValue* Json::find(const JsonValue& object, const char* key) const {
  for (const JsonValue* m = first(object); m; m = next(*m))
    if (strcmp(this->key(*m), key) == 0) return m;
  return nullptr;
}

}  // namespace lcrbnn
