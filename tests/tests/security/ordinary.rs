//! The ordinary work of an agent goes on in its view: the table in docs/guides/sandbox.md.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::attack::Attack;
use muleteer_tests::skip::skip;
use std::process::Command;

/// A piece of work: the programs that it needs, and its script. It begins in an empty folder of its
/// own, which the agent can write.
struct Work {
    name: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
    /// It makes user namespaces, so `sandbox.nested` must allow them.
    nested: bool,
}

const fn work(name: &'static str, needs: &'static [&'static str], script: &'static str) -> Work {
    Work { name, needs, script, nested: false }
}

/// The packages are made by the scripts, because a machine may reach no registry.
const WORK: [Work; 12] = [
    work(
        "git rebase and push",
        &["git"],
        r#"
git init --quiet --initial-branch=main work && cd work || exit 1
git config user.name me; git config user.email me@example.invalid
echo a > a; git add a; git commit --quiet -m a || exit 1
git checkout --quiet -b side; echo b > b; git add b; git commit --quiet -m b
git checkout --quiet main; echo c > c; git add c; git commit --quiet -m c
git rebase --quiet main side && git init --quiet --bare ../hub.git &&
  git push --quiet ../hub.git side
"#,
    ),
    work(
        "cc",
        &["cc"],
        r#"
printf 'int main(void){return 0;}' > x.c && cc -o x x.c && ./x
"#,
    ),
    work(
        "gdb on an own child",
        &["gdb", "cc"],
        r#"
printf 'int main(void){return 0;}' > x.c && cc -g -o x x.c &&
  gdb -q -batch -ex run ./x 2>&1 | grep -q 'exited normally'
"#,
    ),
    work("perl", &["perl"], "perl -e 'exit 0'"),
    work("node", &["node"], "node -e 'require(\"os\").cpus()'"),
    work(
        "npm install",
        &["npm"],
        r#"
mkdir dep app && echo '{"name":"dep","version":"1.0.0","main":"m.js"}' > dep/package.json
echo 'module.exports = 7' > dep/m.js
cd app && echo '{"name":"app","version":"1.0.0"}' > package.json
npm install --no-audit --no-fund --cache "$PWD/../cache" ../dep &&
  node -e 'process.exit(require("dep") === 7 ? 0 : 1)'
"#,
    ),
    work(
        "cargo build",
        &["cargo", "cc"],
        r#"
export CARGO_HOME="$PWD/cargo-home" CARGO_NET_OFFLINE=true
cargo init --quiet --vcs none --name app app && cd app && cargo build --quiet &&
  ./target/debug/app | grep -q Hello && cargo test --quiet
"#,
    ),
    work(
        "pip install in a venv",
        &["python3", "pip3"],
        r#"
python3 -m venv env && mkdir pack && cd pack || exit 1
printf 'x = 7\n' > dep.py && mkdir dep-1.dist-info
printf 'Metadata-Version: 2.1\nName: dep\nVersion: 1\n' > dep-1.dist-info/METADATA
printf 'Wheel-Version: 1.0\nGenerator: me\nRoot-Is-Purelib: true\nTag: py3-none-any\n' \
  > dep-1.dist-info/WHEEL
printf 'dep.py,,\ndep-1.dist-info/METADATA,,\ndep-1.dist-info/WHEEL,,\ndep-1.dist-info/RECORD,,\n' \
  > dep-1.dist-info/RECORD
python3 -m zipfile -c dep-1-py3-none-any.whl dep.py dep-1.dist-info && cd .. &&
  env/bin/pip install --quiet --no-index --no-cache-dir pack/dep-1-py3-none-any.whl &&
  env/bin/python -c 'import dep; assert dep.x == 7'
"#,
    ),
    work(
        "pytest",
        &["pytest"],
        r#"
printf 'def test_it(tmp_path):\n    (tmp_path / "a").write_text("x")\n' > test_it.py && pytest -q
"#,
    ),
    work(
        "go build",
        &["go"],
        r#"
export GOPATH="$PWD/go" GOCACHE="$PWD/cache" GOFLAGS=-mod=mod GOPROXY=off
mkdir app && cd app && go mod init example.invalid/app &&
  printf 'package main\nfunc main() {}\n' > main.go && go build -o app . && ./app
"#,
    ),
    Work {
        name: "bubblewrap (`sandbox.nested: true`)",
        needs: &["bwrap"],
        script: "bwrap --ro-bind / / --proc /proc --dev /dev --unshare-pid true",
        nested: true,
    },
    Work {
        name: "a user namespace (`sandbox.nested: true`)",
        needs: &["unshare"],
        script: "unshare --user --map-current-user --mount --pid --fork true",
        nested: true,
    },
];

#[test]
fn ordinary_work_is_possible_in_the_view() {
    let test = "ordinary_work_is_possible_in_the_view";
    let mut done = vec![];
    for (nobody, nested) in [(false, false), (true, false), (true, true)] {
        let made = if nobody { Attack::of_nobody(test) } else { Attack::new(test) };
        let Some(mut attack) = made else { return };
        let path = if nobody { USUAL.to_string() } else { own_path() };
        let works: Vec<&Work> = WORK
            .iter()
            .filter(|work| work.nested == nested)
            .filter(|work| match missing(work, &path) {
                Some(program) => {
                    skip(test, &format!("{}: no {program} here", work.name));
                    false
                }
                None => true,
            })
            .collect();
        let scripts = works.iter().map(|work| {
            format!(
                "mkdir \"$TMPDIR/{0}\"; (cd \"$TMPDIR/{0}\" || exit 1\n{1}) || through '{2}'\n",
                work.name.replace(|c: char| !c.is_alphanumeric(), "-"),
                work.script,
                work.name
            )
        });
        let script = scripts.collect::<String>() + OWN;
        attack.path = Some(path.clone());
        attack.world.configure(&format!("sandbox: {{nested: {nested}}}\n"));
        let daemon = attack.daemon();
        assert_eq!(attack.run(&script), "", "nobody: {nobody}");
        done.extend(works.iter().map(|work| work.name));
        attack.end(daemon);
    }
    eprintln!("in the sandbox: {}", done.join(", "));
}

/// The agent's own place.
const OWN: &str = r#"
getent hosts localhost > /dev/null || through "names of hosts"
test "$(id -u)" = "$(stat -c %u "$HOME")" || through "the owner of HOME"
echo note > "$HOME/note" || through "HOME"
true
"#;

/// The PATH of programs that every user finds.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the PATH of the tests, with the toolchain itself before rustup's wrappers, which look
/// for it in another HOME.
fn own_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let root = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    match root {
        Ok(root) if !root.is_empty() => format!("{root}/bin:{path}"),
        _ => path,
    }
}

/// Returns a program that is not on this PATH.
fn missing(work: &Work, path: &str) -> Option<&'static str> {
    let is_there = |name: &&&str| {
        let mut find = Command::new("sh");
        find.args(["-c", "command -v \"$0\"", name]).env("PATH", path);
        find.output().unwrap().status.success()
    };
    work.needs.iter().find(|name| !is_there(name)).copied()
}
