/// Sorts things by their names where many have one and the same string for a name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace varve {

/// Sorts by name, bytewise; things of one name keep their order. `name_of` returns the address of a
/// thing's name. Compares each distinct string a few times, however many things have it.
template <class T, class NameOf>
void SortByName(std::vector<T>* things, const NameOf& name_of) {
  const auto before = [&](const T& a, const T& b) {
    return name_of(a) != name_of(b) && *name_of(a) < *name_of(b);
  };
  if (std::is_sorted(things->begin(), things->end(), before)) {
    return;
  }
  std::unordered_map<const std::string*, std::size_t> numbers;  // Looked up only.
  std::vector<const std::string*> names;
  std::vector<std::size_t> number_of;  // By thing.
  number_of.reserve(things->size());
  for (const T& thing : *things) {
    const auto [at, is_new] = numbers.emplace(name_of(thing), names.size());
    if (is_new) {
      names.push_back(name_of(thing));
    }
    number_of.push_back(at->second);
  }
  std::vector<std::size_t> order(names.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return *names[a] < *names[b]; });
  std::vector<std::size_t> places(names.size());  // Equal strings have one place.
  std::size_t place = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place += i > 0 && *names[order[i]] != *names[order[i - 1]] ? 1 : 0;
    places[order[i]] = place;
  }
  std::vector<std::size_t> next(order.empty() ? 1 : place + 2, 0);
  for (const std::size_t number : number_of) {
    ++next[places[number] + 1];
  }
  for (std::size_t i = 1; i < next.size(); ++i) {
    next[i] += next[i - 1];
  }
  std::vector<T> sorted(things->size());
  for (std::size_t i = 0; i < things->size(); ++i) {
    sorted[next[places[number_of[i]]]++] = std::move((*things)[i]);
  }
  *things = std::move(sorted);
}

}  // namespace varve
