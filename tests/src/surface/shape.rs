//! The shape of JSON documents: their keys with types, compared with a frozen file.
//!
//! A line of such a file is `document path: types`. A mark behind the path says how often the key
//! occurs: no mark means always, `?` in some of the objects, and `~` perhaps in none (it depends on
//! time or machine; a person writes this mark). An observation may have fewer types than the file.

use crate::frozen;
use crate::probe::plain_kind;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The shapes of several documents. An object whose keys are names or ids counts all its values as
/// one.
#[derive(Debug, Default)]
pub struct Shapes {
    maps: &'static [&'static str],
    documents: BTreeMap<String, Shape>,
}

#[derive(Debug, Default)]
struct Shape(BTreeMap<String, Place>);

#[derive(Debug, Default)]
struct Place {
    types: BTreeSet<String>,
    parent: String,
    /// How many values were seen at this path, and how many of these have other values below them.
    seen: usize,
    objects: usize,
}

/// A line of a frozen file, without its document and path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frozen {
    mark: &'static str,
    types: BTreeSet<String>,
    parent: String,
}

impl Shapes {
    /// Creates an empty set. `maps` are the `document path` of objects whose keys are no field
    /// names.
    pub fn new(maps: &'static [&'static str]) -> Self {
        Self { maps, documents: BTreeMap::new() }
    }

    /// Adds a document; several documents of one name are merged.
    pub fn add(&mut self, name: &str, value: &Value) {
        let shape = self.documents.entry(name.into()).or_default();
        add(shape, self.maps, name, "", "", value);
    }

    /// Adds each line of a stream under one name.
    ///
    /// # Panics
    /// When a line is no JSON.
    pub fn add_lines(&mut self, name: &str, text: &str) {
        for line in text.lines() {
            let value = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
            self.add(name, &value);
        }
    }

    /// Compares all added documents with the frozen file, or rewrites it.
    ///
    /// # Panics
    /// When the shapes differ.
    #[track_caller]
    pub fn check(&self, file: &str) {
        let frozen = frozen::read(file);
        if frozen::is_update() {
            frozen::write(file, &self.lines(&frozen));
        } else {
            frozen::fail_on(file, &self.differences(&frozen));
        }
    }

    fn differences(&self, frozen: &BTreeSet<String>) -> Vec<String> {
        let frozen = parsed(frozen);
        let mut differences = vec![];
        for (name, shape) in &self.documents {
            for (path, place) in &shape.0 {
                match frozen.get(&(name.clone(), path.clone())) {
                    None => differences.push(format!("+ {name} {path}: {}", joined(&place.types))),
                    Some(known) if !place.types.is_subset(&known.types) => {
                        let (was, is) = (joined(&known.types), joined(&place.types));
                        differences.push(format!("- {name} {path}: {was} (now {is})"));
                    }
                    Some(_) => {}
                }
            }
        }
        for ((name, path), known) in &frozen {
            let places = self.documents.get(name).map(|shape| &shape.0);
            let parent = places.and_then(|places| places.get(&known.parent));
            let seen = places.and_then(|places| places.get(path)).map_or(0, |place| place.seen);
            let objects = parent.map_or(0, |parent| parent.objects);
            let is_missing = match known.mark {
                "~" => false,
                // The first case is the document itself, the next are paths that only some objects
                // have.
                _ if path.is_empty() => seen == 0,
                "?" => objects > 0 && seen == 0,
                _ if path.ends_with("[]") => parent.is_some() && seen == 0,
                _ => seen < objects,
            };
            if is_missing {
                differences.push(format!(
                    "- {name} {path}: missing in {} of {objects}",
                    objects.saturating_sub(seen)
                ));
            }
        }
        differences
    }

    /// Returns the file's lines: the types as observed now, with a person's marks.
    fn lines(&self, frozen: &BTreeSet<String>) -> BTreeSet<String> {
        let frozen = parsed(frozen);
        let mut lines = BTreeSet::new();
        for (name, shape) in &self.documents {
            for (path, place) in &shape.0 {
                let known = frozen.get(&(name.clone(), path.clone()));
                let objects = shape.0.get(&place.parent).map_or(0, |parent| parent.objects);
                let sometimes = !path.is_empty() && !path.ends_with("[]") && place.seen < objects;
                let mark = match known.map(|known| known.mark) {
                    Some(mark @ ("~" | "?")) => mark,
                    _ => {
                        if sometimes {
                            "?"
                        } else {
                            ""
                        }
                    }
                };
                let before = known.map(|known| known.types.clone()).unwrap_or_default();
                let types = place.types.union(&before).cloned().collect();
                lines.insert(format!("{name} {path}{mark}: {}", joined(&types)));
            }
        }
        // Paths below a person's mark also stay.
        let marked: Vec<_> =
            frozen.iter().filter(|(_, known)| known.mark == "~").map(|(place, _)| place).collect();
        for (place, known) in &frozen {
            let (name, path) = place;
            let is_observed =
                self.documents.get(name).is_some_and(|shape| shape.0.contains_key(path));
            let is_kept = |above: &&(String, String)| {
                let below = path.strip_prefix(above.1.as_str());
                above.0 == *name
                    && below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            if !is_observed && marked.iter().any(is_kept) {
                lines.insert(format!("{name} {path}{}: {}", known.mark, joined(&known.types)));
            }
        }
        lines
    }
}

fn add(shape: &mut Shape, maps: &[&str], name: &str, parent: &str, path: &str, value: &Value) {
    let place = shape.0.entry(path.into()).or_default();
    place.parent = parent.into();
    place.types.insert(kind(path, value));
    place.seen += 1;
    match value {
        Value::Object(fields) => {
            place.objects += 1;
            let is_map = maps.contains(&format!("{name} {path}").as_str());
            for (key, value) in fields {
                let key = if is_map { "*" } else { key };
                add(shape, maps, name, path, &format!("{path}.{key}"), value);
            }
        }
        Value::Array(items) => {
            place.objects += usize::from(!items.is_empty());
            for value in items {
                add(shape, maps, name, path, &format!("{path}[]"), value);
            }
        }
        _ => {}
    }
}

/// Returns the type of a value. A format's version also has its number.
fn kind(path: &str, value: &Value) -> String {
    if value.is_number() && (path == ".v" || path == ".version") {
        return format!("version {value}");
    }
    plain_kind(value).into()
}

fn joined(types: &BTreeSet<String>) -> String {
    types.iter().cloned().collect::<Vec<_>>().join("|")
}

fn parsed(lines: &BTreeSet<String>) -> BTreeMap<(String, String), Frozen> {
    lines.iter().map(|line| parse(line)).collect()
}

fn parse(line: &str) -> ((String, String), Frozen) {
    let (place, types) = line.rsplit_once(": ").unwrap_or_else(|| panic!("no types in `{line}`"));
    let (name, path) = place.rsplit_once(' ').unwrap_or_else(|| panic!("no path in `{line}`"));
    let (path, mark) = match (path.strip_suffix('?'), path.strip_suffix('~')) {
        (Some(path), _) => (path, "?"),
        (_, Some(path)) => (path, "~"),
        _ => (path, ""),
    };
    let parent = match path.strip_suffix("[]") {
        Some(parent) => parent,
        None => path.rsplit_once('.').map_or("", |(parent, _)| parent),
    };
    let types = types.split('|').map(String::from).collect();
    ((name.into(), path.into()), Frozen { mark, types, parent: parent.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shapes(values: &[Value]) -> Shapes {
        let mut shapes = Shapes::new(&["one .map"]);
        values.iter().for_each(|value| shapes.add("one", value));
        shapes
    }

    fn frozen() -> BTreeSet<String> {
        shapes(&[
            json!({"a": 1, "b": [{"c": "x", "d": null}], "map": {"x": 1, "y": 2}}),
            json!({"a": 2, "map": {}}),
        ])
        .lines(&BTreeSet::new())
    }

    #[test]
    fn lines_unite_documents_and_the_values_of_a_map() {
        let wanted = [
            "one .a: number",
            "one .b?: array",
            "one .b[].c: string",
            "one .b[].d: null",
            "one .b[]: object",
            "one .map.*: number",
            "one .map: object",
            "one : object",
        ];
        assert_eq!(frozen(), wanted.map(String::from).into());
    }

    #[test]
    fn differences_are_found_in_keys_types_and_presence() {
        let whole = json!({"a": 1, "b": [{"c": "x", "d": null}], "map": {"z": 1}});
        let with = |key: &str, value: Value| {
            let mut changed = whole.clone();
            changed[key] = value;
            shapes(&[changed]).differences(&frozen())
        };
        assert_eq!(
            shapes(std::slice::from_ref(&whole)).differences(&frozen()),
            Vec::<String>::new()
        );
        assert_eq!(with("a", json!("1")), ["- one .a: number (now string)"]);
        assert_eq!(with("new", json!(1)), ["+ one .new: number"]);
        assert_eq!(with("b", json!([{"c": "x"}])), ["- one .b[].d: missing in 1 of 1"]);
        let without = shapes(&[json!({"b": [], "map": {"x": 1}})]).differences(&frozen());
        assert_eq!(without, ["- one .a: missing in 1 of 1", "- one .b[]: missing in 0 of 0"]);
        assert_eq!(Shapes::default().differences(&frozen()), ["- one : missing in 0 of 0"]);
    }

    #[test]
    fn lines_that_a_person_marked_stay() {
        let marked: BTreeSet<String> =
            frozen().iter().map(|line| line.replace(".b?", ".b~")).collect();
        let observed = shapes(&[json!({"a": null, "map": {"x": 1}})]);
        let lines = observed.lines(&marked);
        assert!(
            lines.contains("one .b~: array") && lines.contains("one .a: null|number"),
            "{lines:?}"
        );
        assert!(lines.contains("one .b[].c: string"), "what is below it stays too: {lines:?}");
    }
}
