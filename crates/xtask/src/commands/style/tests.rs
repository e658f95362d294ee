use super::files::Entry;
use super::{Counts, compare, lower, parse, print, rules};

fn rust(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let entry = Entry::Rust { path: path.into(), text: text.into() };
    rules::all(&[entry]).iter().map(|one| (one.rule, one.line)).collect()
}

fn markdown(text: &str) -> Vec<(&'static str, usize)> {
    let entry = Entry::Markdown { path: "docs/page.md".into(), text: text.into() };
    rules::all(&[entry]).iter().map(|one| (one.rule, one.line)).collect()
}

#[test]
fn opener_in_a_comment_is_found_and_a_question_is_not() {
    let text = "/// What this does.\n/// More.\nfn a() {}\n// Short. Whoever calls it waits.\n// \
        What for?\n";
    assert_eq!(rust("crates/a/src/b.rs", text), [("sentence-opener", 1), ("sentence-opener", 4)]);
}

#[test]
fn opener_in_a_string_is_ignored() {
    assert_eq!(rust("crates/a/src/b.rs", "const A: &str = \"// What is it.\";\n"), []);
}

#[test]
fn opener_after_a_line_break_of_a_paragraph_is_found() {
    assert_eq!(
        markdown("# What it is\n\nThe daemon\nruns. Whose\nagent it is.\n"),
        [("sentence-opener", 3)]
    );
    assert_eq!(markdown("- Of a run the daemon keeps the log.\n"), [("sentence-opener", 1)]);
    assert_eq!(markdown("The list shows what\nWhat is here means\n"), []);
}

#[test]
fn wide_line_is_found_unless_it_is_a_table_or_a_link() {
    let wide = "x".repeat(101);
    assert_eq!(markdown(&wide), [("line-width", 1)]);
    assert_eq!(markdown(&format!("| {wide} |")), []);
    assert_eq!(markdown(&format!("[a](b) {wide}")), []);
}

#[test]
fn long_function_is_found_with_braces_in_strings() {
    let body = "    let _ = \"{\";\n".repeat(99);
    let long = format!("fn short() -> [u8; 2] {{ [0; 2] }}\nfn long() {{\n{body}}}\n");
    assert_eq!(rust("crates/a/src/b.rs", &long), [("function-size", 2)]);
    let body = "    let _ = \"{\";\n".repeat(98);
    assert_eq!(rust("crates/a/src/b.rs", &format!("fn fits() {{\n{body}}}\n")), []);
}

#[test]
fn product_rules_skip_tests() {
    let code = "fn a() -> Result<u8, String> { b(\"E_USAGE\", \"codex\") }\n";
    let rules = ["string-error", "backend-name", "error-code"].map(|rule| (rule, 1));
    assert_eq!(rust("crates/a/src/b.rs", code), rules);
    assert_eq!(rust("tests/tests/b.rs", code), []);
    let nested = "fn a() -> io::Result<Result<Option<u8>, String>> {}\n";
    assert_eq!(rust("crates/a/src/b.rs", nested), [("string-error", 1)]);
    let of_a_text = "fn a() -> Result<Map<Id, String>, Error> {}\n";
    assert_eq!(rust("crates/a/src/b.rs", of_a_text), []);
    let in_module = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
    assert_eq!(rust("crates/a/src/b.rs", &in_module), []);
}

#[test]
fn folder_with_too_many_entries_is_found() {
    let of = |entries| rules::all(&[Entry::Folder { path: "crates/a".into(), entries }]).len();
    assert_eq!((of(14), of(15)), (0, 1));
}

#[test]
fn exceptions_only_shrink() {
    let counts = |text: &str| -> Counts { parse(text).expect("well formed") };
    let listed = counts("# a comment\nline-width a.rs 3\nline-width b.rs 1\n");
    let found = counts("line-width a.rs 2\nline-width c.rs 4\n");
    assert_eq!(lower(&listed, &found), counts("line-width a.rs 2\n"));
    assert_eq!(counts(&print(&listed)), listed);
    let problems = compare(&listed, &found, &[]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(parse("line-width a.rs").is_err());
}
