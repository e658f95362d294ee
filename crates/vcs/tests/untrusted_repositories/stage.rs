//! Repositories with traps: programs that leave a marker when they run.

use muleteer_vcs::spec_run::{RunPaths, RunRepos};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio_util::sync::CancellationToken;

pub const RUN: &str = "run-2026-01-01-abcdef";
pub const TARGET: &str = "muleteer/run-2026-01-01-abcdef";

/// The way in which a repository names its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Configuration, hooks, signed commits, replace refs and grafts.
    Settings,
    /// The same, and attributes give every file a filter, a diff driver and a merge driver.
    Attributes,
    /// The same as [`Kind::Settings`], and every path is rewritten to a transport that runs a
    /// program.
    Addresses,
    /// The same as [`Kind::Settings`], in a git directory elsewhere that a `.git` file names.
    GitFile,
}

/// A person's repository, an agent's clone of it and a run, with traps in each.
pub struct Stage {
    _dir: tempfile::TempDir,
    pub root: PathBuf,
    /// A copy of everything below `root`.
    saved: PathBuf,
    kind: Kind,
    /// The first commit of the person's repository.
    pub base: String,
    pub repos: RunRepos,
}

impl Stage {
    /// Returns the folder of the agents' clones.
    pub fn worktrees(&self) -> PathBuf {
        self.repos.repo.join(".muleteer/worktrees").join(RUN)
    }

    pub fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, saved) =
            (dir.path().canonicalize().unwrap().join("root"), dir.path().join("saved"));
        let project = root.join("project");
        std::fs::create_dir(&root).unwrap();
        for folder in ["project", "markers", "traps", "state", "hooks"] {
            std::fs::create_dir(root.join(folder)).unwrap();
        }
        let paths = RunPaths { private: root.join("state") };
        let repos = RunRepos::new(RUN, &project, paths, CancellationToken::new());
        let mut stage = Self { _dir: dir, root, saved, kind, base: String::new(), repos };
        stage.write_traps();
        stage.ordinary(&project, &["init", "--quiet", "--template=", "-b", "main"]);
        for (key, value) in [("user.name", "A Person"), ("user.email", "a@example.invalid")] {
            stage.ordinary(&project, &["config", key, value]);
        }
        std::fs::write(project.join("file"), "one\ntwo\nthree\n").unwrap();
        stage.ordinary(&project, &["add", "file"]);
        stage.ordinary(&project, &["commit", "--quiet", "--message=first"]);
        stage.sign(&project);
        stage.base = stage.ordinary(&project, &["rev-parse", "HEAD"]);
        stage.ordinary(&project, &["checkout", "--quiet", "-b", "ahead"]);
        for name in ["ahead", "harness-tasks.json"] {
            std::fs::write(project.join(name), "{}\n").unwrap();
            stage.ordinary(&project, &["add", "--force", name]);
        }
        stage.ordinary(&project, &["commit", "--quiet", "--message=ahead"]);
        stage.sign(&project);
        stage.ordinary(&project, &["checkout", "--quiet", "main"]);
        stage.ordinary(&stage.root, &["clone", "--quiet", "--bare", "project", "origin.git"]);
        let origin = stage.root.join("origin.git");
        stage.ordinary(&project, &["remote", "add", "origin", origin.to_str().unwrap()]);
        for clone in [stage.clone_dir(), stage.worker_dir()] {
            let name = clone.to_str().unwrap();
            let clone_of = ["clone", "--quiet", "--template=", "--shared", "project", name];
            stage.ordinary(&stage.root, &clone_of);
            stage.ordinary(&clone, &["checkout", "--quiet", "-b", "work"]);
            stage.work_in(&clone);
            stage.trap(&clone);
        }
        std::fs::write(project.join("file"), "one\ntwo, by a person\nthree\n").unwrap();
        std::fs::write(project.join("untracked"), "untracked\n").unwrap();
        stage.trap(&project);
        for clone in [stage.clone_dir(), stage.worker_dir()] {
            // The clones borrow objects, also where the git directory has moved.
            let lenders = stage.git_dir(&clone).join("objects/info/alternates");
            let objects = stage.git_dir(&project).join("objects");
            std::fs::write(lenders, format!("{}\n", objects.display())).unwrap();
        }
        stage.copy(&stage.root, &stage.saved);
        stage
    }

    /// Takes back everything that happened since the stage was made.
    pub fn restore(&self) {
        std::fs::remove_dir_all(&self.root).unwrap();
        self.copy(&self.saved, &self.root);
    }

    fn copy(&self, from: &Path, to: &Path) {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    }

    pub fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    /// Returns the clone of a dispatch's agent, on the branch `work`.
    pub fn clone_dir(&self) -> PathBuf {
        self.root.join("clone")
    }

    /// Returns the clone of a task-list worker, on the branch `work`.
    pub fn worker_dir(&self) -> PathBuf {
        self.root.join("worker")
    }

    /// Returns the git directory of a repository with a working directory.
    pub fn git_dir(&self, dir: &Path) -> PathBuf {
        match self.kind {
            Kind::GitFile => self.elsewhere(dir),
            _ => dir.join(".git"),
        }
    }

    fn elsewhere(&self, dir: &Path) -> PathBuf {
        self.root.join(format!("elsewhere-{}", dir.file_name().unwrap().to_string_lossy()))
    }

    /// Returns the programs that ran.
    pub fn markers(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.root.join("markers")).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// Runs git as anybody would. Its traps may run.
    pub fn ordinary(&self, dir: &Path, args: &[&str]) -> String {
        let output = Command::new("git")
            .arg("-C")
            .arg(dir)
            .args(args)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// Does an agent's work: a signed commit, a changed file and a new one.
    pub fn work_in(&self, clone: &Path) {
        self.ordinary(clone, &["config", "user.name", "An Agent"]);
        self.ordinary(clone, &["config", "user.email", "agent@example.invalid"]);
        std::fs::write(clone.join("made"), "made\n").unwrap();
        self.ordinary(clone, &["add", "made"]);
        self.ordinary(clone, &["commit", "--quiet", "--no-verify", "--message=made"]);
        self.sign(clone);
        std::fs::write(clone.join("file"), "one\ntwo\nthree, by an agent\n").unwrap();
        std::fs::write(clone.join("left"), "left\n").unwrap();
    }

    /// Gives the commit that is checked out a signature, which a git may want to check.
    fn sign(&self, dir: &Path) {
        let commit = self.ordinary(dir, &["cat-file", "commit", "HEAD"]);
        let (head, message) = commit.split_once("\n\n").unwrap();
        let signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n AAAA\n \
                         -----END PGP SIGNATURE-----";
        let file = self.root.join("signed");
        std::fs::write(&file, format!("{head}\n{signature}\n\n{message}\n")).unwrap();
        let hash = ["hash-object", "-t", "commit", "-w", file.to_str().unwrap()];
        let signed = self.ordinary(dir, &hash);
        self.ordinary(dir, &["update-ref", "HEAD", &signed]);
        assert_eq!(self.ordinary(dir, &["rev-parse", "HEAD"]), signed);
    }

    fn program(&self, name: &str) -> String {
        self.root.join("traps").join(name).display().to_string()
    }

    fn write_traps(&self) {
        let executable = |path: &Path, text: &str| {
            std::fs::write(path, text).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        };
        let script = |name: &str| {
            format!("#!/bin/sh\n: > '{}'\n", self.root.join("markers").join(name).display())
        };
        for name in TRAPS {
            executable(&self.root.join("traps").join(name), &script(name));
        }
        for name in HOOKS {
            executable(&self.root.join("hooks").join(name), &script("hook"));
        }
    }

    /// Sets all traps of this kind in a repository whose git directory is below it or is itself.
    pub fn trap(&self, dir: &Path) {
        let git_dir = if dir.join(".git").is_dir() { dir.join(".git") } else { dir.to_owned() };
        self.replace_history(dir, &git_dir);
        std::fs::create_dir_all(git_dir.join("hooks")).unwrap();
        for name in HOOKS {
            std::fs::copy(self.root.join("hooks").join(name), git_dir.join("hooks").join(name))
                .unwrap();
        }
        if self.kind == Kind::Attributes && git_dir != dir {
            let attributes = "* filter=trap diff=trap merge=trap\n";
            std::fs::create_dir_all(git_dir.join("info")).unwrap();
            for path in [git_dir.join("info/attributes"), dir.join(".gitattributes")] {
                std::fs::write(path, attributes).unwrap();
            }
            std::fs::write(self.root.join("attributes"), attributes).unwrap();
        }
        let included = self.root.join("included");
        std::fs::write(&included, self.settings()).unwrap();
        let config = git_dir.join("config");
        let mut text = std::fs::read_to_string(&config).unwrap_or_default();
        text.push_str(&self.settings());
        text.push_str(&format!("[include]\n\tpath = {}\n", included.display()));
        if self.kind == Kind::Addresses {
            text.push_str(&format!(
                "[protocol]\n\tallow = always\n[protocol \"ext\"]\n\tallow = always\n\
                 [protocol \"ssh\"]\n\tallow = always\n\
                 [url \"ssh://nobody.invalid/\"]\n\tinsteadOf = {0}\n\
                 [url \"ext::{1} \"]\n\tpushInsteadOf = {0}\n",
                self.root.display(),
                self.program("ext"),
            ));
        }
        std::fs::write(&config, text).unwrap();
        if self.kind == Kind::GitFile && git_dir != dir {
            let elsewhere = self.elsewhere(dir);
            std::fs::rename(&git_dir, &elsewhere).unwrap();
            std::fs::write(dir.join(".git"), format!("gitdir: {}\n", elsewhere.display())).unwrap();
        }
    }

    /// Replaces the commit that is checked out by another one without a parent.
    fn replace_history(&self, dir: &Path, git_dir: &Path) {
        let head = self.ordinary(dir, &["rev-parse", "HEAD"]);
        let tree = self.ordinary(dir, &["rev-parse", "HEAD^{tree}"]);
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"];
        let make = ["commit-tree", "-m", "another", &tree];
        let other = self.ordinary(dir, &[&who[..], &make].concat());
        self.ordinary(dir, &["update-ref", &format!("refs/replace/{head}"), &other]);
        std::fs::create_dir_all(git_dir.join("info")).unwrap();
        std::fs::write(git_dir.join("info/grafts"), format!("{head}\n")).unwrap();
    }

    fn settings(&self) -> String {
        let program = |name: &str| self.program(name);
        let root = self.root.display();
        format!(
            "[core]\n\tfsmonitor = {fsmonitor}\n\thooksPath = {root}/hooks\n\
             \tsshCommand = {ssh}\n\tgitProxy = {proxy}\n\taskPass = {askpass}\n\
             \teditor = {editor}\n\tpager = {pager}\n\tattributesFile = {root}/attributes\n\
             \talternateRefsCommand = {alternates}\n\
             [credential]\n\thelper = {askpass}\n\
             [sequence]\n\teditor = {editor}\n\
             [filter \"trap\"]\n\tclean = {clean}\n\tsmudge = {smudge}\n\tprocess = {process}\n\
             \trequired = true\n\
             [diff]\n\texternal = {external}\n\
             [diff \"trap\"]\n\tcommand = {external}\n\ttextconv = {textconv}\n\
             [merge \"trap\"]\n\tdriver = {driver}\n\
             [merge]\n\tverifySignatures = true\n\
             [gpg]\n\tprogram = {gpg}\n[gpg \"ssh\"]\n\tprogram = {gpg}\n\
             [gpg \"x509\"]\n\tprogram = {gpg}\n[gpg \"openpgp\"]\n\tprogram = {gpg}\n\
             [commit]\n\tgpgSign = true\n[tag]\n\tgpgSign = true\n[push]\n\tgpgSign = if-asked\n\
             [log]\n\tshowSignature = true\n\
             [gc]\n\tauto = 1\n\trecentObjectsHook = {hook}\n[maintenance]\n\tauto = true\n\
             [uploadpack]\n\tpackObjectsHook = {hook}\n\
             [submodule]\n\trecurse = true\n[fetch]\n\trecurseSubmodules = true\n\
             [alias]\n\tmerge-ort = !{alias}\n\tupload-pack = !{alias}\n\
             \trev-parse = !{alias}\n\tfetch = !{alias}\n\tstatus = !{alias}\n",
            fsmonitor = program("fsmonitor"),
            ssh = program("ssh"),
            proxy = program("proxy"),
            askpass = program("askpass"),
            editor = program("editor"),
            pager = program("pager"),
            alternates = program("alternates"),
            clean = program("clean"),
            smudge = program("smudge"),
            process = program("process"),
            external = program("external"),
            textconv = program("textconv"),
            driver = program("driver"),
            gpg = program("gpg"),
            hook = program("hook"),
            alias = program("alias"),
        )
    }
}

const TRAPS: [&str; 17] = [
    "fsmonitor",
    "ssh",
    "proxy",
    "askpass",
    "editor",
    "pager",
    "alternates",
    "clean",
    "smudge",
    "process",
    "external",
    "textconv",
    "driver",
    "gpg",
    "hook",
    "alias",
    "ext",
];

const HOOKS: [&str; 14] = [
    "applypatch-msg",
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "post-rewrite",
    "pre-merge-commit",
    "pre-auto-gc",
    "reference-transaction",
    "post-index-change",
    "fsmonitor-watchman",
];
