//! The import graph of the modules of one crate, read from its sources.
//!
//! A module imports another one if its code names a path to it, in a `use` or elsewhere. Code under
//! `#[cfg(test)]` does not count. The crate root is not in the graph, because any module may use
//! what the root defines, and the root names every module.

use crate::Failure;
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The path of a module below the crate root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module(Vec<String>);

impl Module {
    /// Returns the name of the topmost module that it is in.
    pub fn top(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("::"))
    }
}

/// The imports of every module of a crate.
#[derive(Debug)]
pub struct ModuleGraph {
    imports: BTreeMap<Module, BTreeSet<Module>>,
    /// Every path that the code of a module names, as it is written.
    paths: BTreeMap<Module, Vec<Vec<String>>>,
}

impl ModuleGraph {
    /// Reads a crate from its root file (`lib.rs` or `main.rs`) on, by its `mod` declarations.
    ///
    /// # Errors
    /// A module's file cannot be read.
    pub fn read(root: &Path) -> Result<Self, Failure> {
        let mut sources = BTreeMap::new();
        load(root, Module(vec![]), &mut sources)?;
        let imports = sources
            .iter()
            .filter(|(module, _)| !module.0.is_empty())
            .map(|(module, source)| {
                let found = source.paths.iter().filter_map(|path| {
                    resolve(module, source, path, &|name| sources.contains_key(name))
                });
                (module.clone(), found.collect())
            })
            .collect();
        let paths = sources.into_iter().map(|(module, source)| (module, source.paths)).collect();
        Ok(Self { imports, paths })
    }

    /// Returns every import as a pair: the importing module, and the imported one.
    pub fn imports(&self) -> impl Iterator<Item = (&Module, &Module)> {
        self.imports.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
    }

    /// Returns every path below another crate's root that a module names.
    pub fn paths_into<'a>(
        &'a self,
        other: &'a str,
    ) -> impl Iterator<Item = (&'a Module, &'a [String])> {
        self.paths.iter().flat_map(move |(module, paths)| {
            paths.iter().filter_map(move |path| {
                let (first, rest) = path.split_first()?;
                (first == other).then_some((module, rest))
            })
        })
    }

    /// Returns the sets of modules that import each other, directly or through others; the largest
    /// first.
    pub fn cycles(&self) -> Vec<Vec<&Module>> {
        let mut search = Search { graph: self, seen: BTreeMap::new(), open: vec![], found: vec![] };
        for module in self.imports.keys() {
            if !search.seen.contains_key(module) {
                search.visit(module);
            }
        }
        let mut found = search.found;
        found.retain(|cycle| cycle.len() > 1);
        found.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        found
    }
}

/// Tarjan's search for strongly connected components.
struct Search<'a> {
    graph: &'a ModuleGraph,
    /// The number of each visited module, and the lowest number that it reaches.
    seen: BTreeMap<&'a Module, (usize, usize)>,
    /// Visited modules whose component is not complete.
    open: Vec<&'a Module>,
    found: Vec<Vec<&'a Module>>,
}

impl<'a> Search<'a> {
    /// Visits a module and all that it reaches. Returns the lowest number that it reaches.
    fn visit(&mut self, module: &'a Module) -> usize {
        let number = self.seen.len();
        self.seen.insert(module, (number, number));
        self.open.push(module);
        let mut lowest = number;
        for next in self.graph.imports.get(module).into_iter().flatten() {
            match self.seen.get(next) {
                None => lowest = lowest.min(self.visit(next)),
                Some((other, _)) if self.open.contains(&next) => lowest = lowest.min(*other),
                Some(_) => {}
            }
        }
        self.seen.insert(module, (number, lowest));
        if lowest == number {
            let start = self.open.iter().position(|open| *open == module).unwrap_or_default();
            self.found.push(self.open.split_off(start));
        }
        lowest
    }
}

/// The parts of one source file that matter here.
#[derive(Debug, Default, PartialEq)]
struct Source {
    /// The modules that it declares.
    children: Vec<String>,
    /// Every path of two names or more, and every path of a `use`.
    paths: Vec<Vec<String>>,
}

fn load(
    file: &Path,
    module: Module,
    sources: &mut BTreeMap<Module, Source>,
) -> Result<(), Failure> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let source = Source::parse(&text);
    let is_own_folder =
        file.file_stem().is_some_and(|stem| ["mod", "lib", "main"].iter().any(|own| stem == *own));
    let folder = if is_own_folder {
        PathBuf::from(file).with_file_name("")
    } else {
        file.with_extension("")
    };
    for child in &source.children {
        let candidates = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
        if let Some(file) = candidates.iter().find(|file| file.exists()) {
            let name = module.0.iter().chain([child]).cloned().collect();
            load(file, Module(name), sources)?;
        }
    }
    sources.insert(module, source);
    Ok(())
}

/// Returns the other module of this crate to which a path leads.
fn resolve(
    module: &Module,
    source: &Source,
    path: &[String],
    exists: &dyn Fn(&Module) -> bool,
) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => vec![],
        "self" | "super" => module.0.clone(),
        name if source.children.iter().any(|child| child == name) => {
            module.0.iter().chain([first]).cloned().collect()
        }
        _ => return None,
    };
    if first == "super" {
        at.pop()?;
    }
    for name in rest {
        match name.as_str() {
            "super" => drop(at.pop()?),
            _ => at.push(name.clone()),
        }
    }
    while !at.is_empty() {
        let found = Module(at);
        if exists(&found) {
            return Some(found).filter(|found| found != module);
        }
        at = found.0;
        at.pop();
    }
    None
}

impl Source {
    fn parse(text: &str) -> Self {
        let words = words(text);
        let word = |at: usize| words.get(at).map_or("", |(_, word)| *word);
        let is_name = |at: usize| words.get(at).is_some_and(|(is_name, _)| *is_name);
        // After `<T as Trait>::` a name is relative to that type.
        let follows_path = |at: usize| at >= 2 && word(at - 1) == ":" && word(at - 2) == ":";
        let mut source = Self::default();
        let mut at = 0;
        while at < words.len() {
            let joined = word(at + 1) == ":" && word(at + 2) == ":";
            if word(at) == "mod" && is_name(at + 1) && word(at + 2) == ";" {
                source.children.push(word(at + 1).into());
                at += 3;
            } else if word(at) == "use" && word(at + 1) != "<" {
                at = use_tree(&words, at + 1, vec![], &mut source.paths);
            } else if is_name(at) && joined && !follows_path(at) {
                let mut path = vec![word(at).to_string()];
                at += 1;
                while word(at) == ":" && word(at + 1) == ":" && is_name(at + 2) {
                    path.push(word(at + 2).into());
                    at += 3;
                }
                source.paths.push(path);
            } else {
                at += 1;
            }
        }
        source
    }
}

/// Reads the paths of a `use` from `at` on. Returns the place behind it.
fn use_tree(
    words: &[(bool, &str)],
    mut at: usize,
    mut path: Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    while let Some((is_name, word)) = words.get(at) {
        at += 1;
        match *word {
            ":" => {}
            "*" => break,
            "{" => {
                while words.get(at).is_some_and(|(_, word)| *word != "}") {
                    at = use_tree(words, at, path.clone(), paths);
                    at += usize::from(words.get(at).is_some_and(|(_, word)| *word == ","));
                }
                return at + 1;
            }
            name if *is_name => {
                path.push(name.into());
                match words.get(at).map(|(_, next)| *next) {
                    Some(":") => {}
                    Some("as") => {
                        at += 2;
                        break;
                    }
                    _ => break,
                }
            }
            _ => return at,
        }
    }
    paths.push(path);
    at
}

/// Returns the words of a source without comments and test code, each with whether it is a name.
fn words(text: &str) -> Vec<(bool, &str)> {
    let mut words = vec![];
    let mut at = 0;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        match token.kind {
            TokenKind::Whitespace
            | TokenKind::LineComment { .. }
            | TokenKind::BlockComment { .. } => {}
            kind => words.push((kind == TokenKind::Ident, &text[at..end])),
        }
        at = end;
    }
    let marker = ["#", "[", "cfg", "(", "test", ")", "]"];
    let is_marker = |at: usize| {
        let here = words[at..].iter().map(|(_, word)| *word);
        here.take(marker.len()).eq(marker)
    };
    let mut product = vec![];
    let mut at = 0;
    while at < words.len() {
        if is_marker(at) {
            at = item_end(&words, at + marker.len());
        } else {
            product.push(words[at]);
            at += 1;
        }
    }
    product
}

/// Returns the place behind the item that begins at `at`.
fn item_end(words: &[(bool, &str)], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some((_, word)) = words.get(at) {
        at += 1;
        match *word {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            ";" if depth == 0 => break,
            _ => {}
        }
    }
    at
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn graph(files: &[(&str, &str)]) -> ModuleGraph {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        ModuleGraph::read(&dir.path().join("lib.rs")).unwrap()
    }

    fn imports(graph: &ModuleGraph) -> Vec<String> {
        graph.imports().map(|(from, to)| format!("{from} -> {to}")).collect()
    }

    #[test]
    fn paths_of_every_form_are_imports() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::Thing;"),
            ("a.rs", "use crate::{b::{self, inner::One as Other}, c::*};\nuse std::fmt;"),
            ("b/mod.rs", "mod inner;\nfn f() { inner::g(); Other::new() }"),
            ("b/inner.rs", "/// [`crate::a`]\nfn g() { super::super::c::h(\"crate::a::x\") }"),
            ("c.rs", "fn h<T: Into<crate::b::Thing>>(_: crate::a::Thing) {}"),
        ]);
        let expected = ["a -> b", "a -> b::inner", "a -> c", "b -> b::inner", "b::inner -> c"];
        assert_eq!(imports(&graph), [&expected[..], &["c -> a", "c -> b"]].concat());
    }

    #[test]
    fn test_code_imports_nothing() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;"),
            (
                "a.rs",
                "#[cfg(test)]\nmod tests { use crate::b::*; fn f() { if x { y } } }\nfn g() {}",
            ),
            ("b.rs", "#[cfg(test)]\npub(crate) mod stand_in;\n#[cfg(test)]\nuse crate::a;"),
            ("b/stand_in.rs", "use crate::a::g;"),
        ]);
        assert_eq!(imports(&graph), [] as [&str; 0]);
    }

    #[test]
    fn cycle_contains_every_module_on_it_and_no_other() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nmod e;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::{c, d};"),
            ("c.rs", "use crate::a;"),
            ("d.rs", "use crate::e;"),
            ("e.rs", ""),
        ]);
        let cycles = graph.cycles();
        assert_eq!(cycles.len(), 1);
        let mut names: Vec<_> = cycles[0].iter().map(|module| module.to_string()).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
