//! Files that git cannot convert as their attributes say.

use crate::command::blocking::run_bytes;
use crate::user_repo::tests::*;

/// The bytes are no text in any of the encodings below.
const ODD: &[u8] = b"\x00odd\r\nline\nend\xff";

/// Begins a task and writes a file that git cannot convert, and ten others.
fn left(attributes: &str) -> (Repo, Git, String) {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.write(".gitattributes", attributes);
    for n in 0..10 {
        repo.write(&format!("new{n}"), "new\n");
    }
    repo.write("kept.txt", "more\n");
    let odd = repo.dir.path().join("an odd \"one\".txt");
    std::fs::write(&odd, ODD).expect("writes");
    // The file is older than any index, because git would read a newer one again.
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = std::fs::File::options().append(true).open(&odd).expect("a file");
    file.set_modified(long_ago).expect("a time");
    (repo, git, base)
}

fn odd_in(repo: &Repo, commit: &str) -> Vec<u8> {
    let mut command = helper("git");
    command.arg("-C").arg(repo.dir.path());
    command.args(["cat-file", "blob", &format!("{commit}:an odd \"one\".txt")]);
    run_bytes(command, b"", "cat-file").expect("it is there")
}

const ATTRIBUTES: [&str; 5] = [
    "an*.txt working-tree-encoding=UTF-16\n",
    "*.txt working-tree-encoding=UTF-16\n* ident text eol=crlf\n",
    "*.txt working-tree-encoding=no-such-encoding\n",
    "* working-tree-encoding\n",
    "* working-tree-encoding text eol=crlf\n",
];

#[test]
fn rollback_with_a_file_that_git_cannot_convert_saves_its_bytes_and_is_undone() {
    for attributes in ATTRIBUTES {
        let (repo, git, base) = left(attributes);
        let saved = git
            .roll_back("a", &base, None, &on_main(), &[], &mut quiet())
            .unwrap_or_else(|error| panic!("{attributes}: {error}"))
            .expect("saved");
        assert_eq!(odd_in(&repo, &saved.commit), ODD, "{attributes}");
        let names = repo.git(&["ls-tree", "--name-only", &saved.commit]);
        assert_eq!(
            names.lines().filter(|name| name.starts_with("new")).count(),
            10,
            "{attributes}"
        );
        assert_eq!(repo.git(&["status", "--porcelain", "--", ":!harness-*"]), "", "{attributes}");
        assert_eq!(repo.read("kept.txt").as_deref(), Some("kept\n"), "{attributes}");
        git.undo(&saved, &[]).unwrap_or_else(|error| panic!("{attributes}: {error}"));
        let there = std::fs::read(repo.dir.path().join("an odd \"one\".txt")).expect("it is there");
        assert_eq!(there, ODD, "{attributes}");
        assert!((0..10).all(|n| repo.read(&format!("new{n}")).is_some()), "{attributes}");
    }
}

#[test]
fn commit_with_a_file_that_git_cannot_convert_has_its_bytes() {
    for attributes in ATTRIBUTES {
        let (repo, git, base) = left(attributes);
        let start = git.start("a", &base).expect("start");
        let commit =
            git.commit(&start, "a: work").unwrap_or_else(|error| panic!("{attributes}: {error}"));
        let commit = commit.expect("something");
        assert_eq!(odd_in(&repo, &commit), ODD, "{attributes}");
        let names = repo.git(&["ls-tree", "--name-only", &commit]);
        assert_eq!(
            names.lines().filter(|name| name.starts_with("new")).count(),
            10,
            "{attributes}"
        );
    }
}

/// The index is racy then: git reads each file again that was added within the same second.
#[test]
fn snapshot_after_a_commit_with_a_file_that_git_cannot_convert_succeeds() {
    for attributes in ATTRIBUTES {
        let (repo, git, base) = left(attributes);
        std::fs::write(repo.dir.path().join("an odd \"one\".txt"), ODD).expect("writes");
        let start = git.start("a", &base).expect("start");
        git.commit(&start, "a: work")
            .unwrap_or_else(|error| panic!("{attributes}: {error}"))
            .expect("something");
        let head = git.head().expect("head");
        let same = git.snapshot().unwrap_or_else(|error| panic!("{attributes}: {error}"));
        assert_eq!(same, git.tree_of("HEAD").expect("a tree"), "{attributes}");
        git.remember_start("b", &head).unwrap_or_else(|error| panic!("{attributes}: {error}"));
        repo.write("kept.txt", "bad\n");
        std::fs::remove_file(repo.dir.path().join("new3")).expect("it is there");
        std::os::unix::fs::symlink("new4", repo.dir.path().join("link")).expect("links");
        let saved = git
            .roll_back("b", &head, None, &on_main(), &[], &mut quiet())
            .unwrap_or_else(|error| panic!("{attributes}: {error}"))
            .expect("saved");
        let names = repo.git(&["ls-tree", "--name-only", &saved.commit]);
        let has = |name: &str| names.lines().any(|line| line == name);
        assert!(has("link") && has("new4") && !has("new3"), "{attributes}: {names}");
        let kept = repo.git(&["cat-file", "blob", &format!("{}:kept.txt", saved.commit)]);
        assert_eq!(kept, "bad", "{attributes}");
        assert!(repo.read("new3").is_some() && repo.read("link").is_none(), "{attributes}");
        assert_eq!(odd_in(&repo, "HEAD"), ODD, "{attributes}");
        let there = std::fs::read(repo.dir.path().join("an odd \"one\".txt")).expect("it is there");
        assert_eq!(there, ODD, "{attributes}");
    }
}

/// git can encode such a file at the checkout, but cannot add it.
#[test]
fn text_in_another_encoding_is_restored_unconverted() {
    let text = b"plain\nlines\n";
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let odd = repo.dir.path().join("odd.txt");
    repo.write(".gitattributes", "odd.txt text eol=crlf working-tree-encoding=UTF-16\n");
    std::fs::write(&odd, text).expect("writes");
    git.remember_start("a", &base).expect("remembers");
    std::fs::write(&odd, b"bad\n").expect("writes");
    let saved = git
        .roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(std::fs::read(&odd).expect("it is there"), text);
    git.undo(&saved, &[]).expect("undoes");
    assert_eq!(std::fs::read(&odd).expect("it is there"), b"bad\n");
    // A task that passes has removed the file.
    std::fs::remove_file(&odd).expect("it is there");
    let start = git.start("a", &base).expect("start");
    let lost = git.keep_lost("a", &base, &start).expect("looks").expect("something");
    git.undo(&lost.saved, &[]).expect("undoes");
    assert_eq!(std::fs::read(&odd).expect("it is there"), text);
}

/// The file has the same length and the same time as the index: git reads it because of the time of
/// the index.
#[test]
fn snapshot_has_a_file_that_changed_in_the_second_of_the_index() {
    let repo = Repo::new();
    let git = repo.open();
    let at = |name: &str, seconds: u64| {
        let file = std::fs::File::options().append(true).open(repo.dir.path().join(name));
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.expect("a file").set_modified(time).expect("a time");
    };
    at("kept.txt", 1_000_000_000);
    repo.git(&["update-index", "--refresh"]);
    // The file is not replaced, because git would notice another inode.
    std::fs::write(repo.dir.path().join("kept.txt"), "more\n").expect("writes");
    at("kept.txt", 1_000_000_000);
    at(".git/index", 1_000_000_000);
    repo.git(&["config", "core.trustctime", "false"]);
    let tree = git.snapshot().expect("a tree");
    assert_eq!(repo.git(&["cat-file", "blob", &format!("{tree}:kept.txt")]), "more");
}

/// Some people configure git to reject line ends that a checkout would not restore.
#[test]
fn file_with_irreversible_line_ends_is_saved_unconverted() {
    let (repo, _, base) = left("*.txt text eol=crlf\n");
    repo.git(&["config", "core.safecrlf", "true"]);
    repo.write("mixed.txt", "one\r\ntwo\n");
    let git = repo.open();
    let saved = git
        .roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(
        git.bytes(&["cat-file", "blob", &format!("{}:mixed.txt", saved.commit)], b"", None),
        Ok(b"one\r\ntwo\n".to_vec())
    );
    assert_eq!(repo.read("mixed.txt"), None);
}

/// Its bytes are saved, but a commit would differ from one of the person's own git.
#[test]
fn file_with_a_failing_filter_is_saved_and_not_committed() {
    let (repo, mut git, base) = left("an* filter=broken\n");
    let filter = [("clean", "false"), ("required", "true")]
        .map(|(key, value)| (key.to_string(), value.into()));
    git.person.filters.insert("broken".into(), filter.into_iter().collect());
    let start = git.start("a", &base).expect("start");
    let error = git.commit(&start, "a: work").expect_err("a filter fails");
    assert!(error.to_string().contains("broken"), "{error}");
    let saved = git
        .roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(odd_in(&repo, &saved.commit), ODD);
}

#[test]
fn convertible_files_beside_an_unconvertible_one_are_converted() {
    let (repo, git, base) =
        left("an*.txt working-tree-encoding=UTF-16\nfine.txt working-tree-encoding=UTF-16\n");
    let text: Vec<u8> = "\u{feff}fine\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(repo.dir.path().join("fine.txt"), &text).expect("writes");
    let start = git.start("a", &base).expect("start");
    let commit = git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(git.git(&["cat-file", "blob", &format!("{commit}:fine.txt")]), Ok("fine".into()));
    assert_eq!(odd_in(&repo, &commit), ODD);
}
