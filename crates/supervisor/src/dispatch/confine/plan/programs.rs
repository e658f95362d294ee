//! Finds the paths outside of the system's folders that an agent's programs need: the folders of
//! PATH, the packages that their links lead to, and the files that the command line and the
//! environment name.

use super::links::{canonical, real};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most entries of one folder of PATH that are looked at.
const ENTRIES: usize = 1000;
/// A longer script is no wrapper.
const WRAPPER: u64 = 64 << 10;
/// Variables that name the folder of a tool.
const ROOTS: [&str; 14] = [
    "CARGO_HOME",
    "CONDA_PREFIX",
    "DOTNET_ROOT",
    "GOROOT",
    "JAVA_HOME",
    "NIX_SSL_CERT_FILE",
    "NODE_PATH",
    "NVM_DIR",
    "PYENV_ROOT",
    "RUSTUP_HOME",
    "SDKMAN_DIR",
    "SSL_CERT_DIR",
    "VIRTUAL_ENV",
    "VOLTA_HOME",
];
/// Folders of HOME that hold more than one tool.
const COMMON: [&str; 5] = [".local", ".config", ".cache", ".muleteer", ".git"];

/// An agent's command line and environment.
pub(super) struct Programs<'a> {
    pub(super) argv: &'a [String],
    pub(super) env: &'a [(String, String)],
    /// Folders that must not be shown as a whole, or with all that is above them.
    pub(super) private: &'a [&'a Path],
    /// Paths that the agent can write.
    pub(super) own: &'a [PathBuf],
}

impl Programs<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        let found = self.env.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the absolute folders of PATH.
    pub(super) fn search_path(&self) -> Vec<PathBuf> {
        let path = self.value("PATH").unwrap_or_default().split(':').map(PathBuf::from);
        path.filter(|dir| dir.is_absolute()).collect()
    }

    /// Returns all paths that the programs need. Some may be in folders of the system.
    pub(super) fn needed(&self) -> BTreeSet<PathBuf> {
        let mut needed = BTreeSet::new();
        for dir in self.search_path() {
            self.add_folder(&dir, &mut needed);
        }
        for word in self.words() {
            self.add_file(Path::new(word), &mut needed);
        }
        let named = self.argv.first().map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(program) = named.or_else(|| self.program()) {
            self.add_file(&program, &mut needed);
            self.add_wrapped(&program, &mut needed);
        }
        for name in ROOTS {
            let Some(folder) = self.value(name).map(Path::new) else { continue };
            if folder.is_absolute() && folder.is_dir() && !self.is_private(folder) {
                needed.insert(folder.to_owned());
            }
        }
        for (name, value) in self.env.iter().filter(|(name, _)| !name.starts_with("MULETEER_")) {
            let file = Path::new(value);
            if name != "PATH" && file.is_absolute() && file.is_file() {
                needed.insert(file.to_owned());
            }
        }
        needed
    }

    /// Returns the files of the agent's CLI: its program, and the package that it is from.
    pub(super) fn cli(&self) -> Option<PathBuf> {
        let named = self.argv.first().map(PathBuf::from).filter(|path| path.is_absolute());
        let program = canonical(&named.or_else(|| self.program())?)?;
        let modules = program.ancestors().filter(|folder| is_modules(folder)).last();
        Some(modules.filter(|folder| !self.is_private(folder)).unwrap_or(&program).to_owned())
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        named_files(self.argv)
    }

    /// Returns the program that is found on PATH.
    fn program(&self) -> Option<PathBuf> {
        let name = self.argv.first().filter(|name| !name.contains('/'))?;
        self.search_path().into_iter().map(|dir| dir.join(name)).find(|file| file.is_file())
    }

    fn add_folder(&self, dir: &Path, needed: &mut BTreeSet<PathBuf>) {
        if !dir.is_dir() {
            return;
        }
        if !self.is_private(dir) {
            needed.insert(dir.to_owned());
        }
        let whole = real(dir.to_owned());
        needed.extend(self.installation(&whole));
        if whole.starts_with("/usr") || whole.starts_with("/bin") || whole.starts_with("/sbin") {
            return;
        }
        let entries = std::fs::read_dir(&whole).into_iter().flatten().flatten().take(ENTRIES);
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        for link in links {
            if let Some(target) = canonical(&link.path()) {
                needed.insert(self.package(&target));
            }
        }
    }

    fn add_file(&self, file: &Path, needed: &mut BTreeSet<PathBuf>) {
        needed.insert(file.to_owned());
        let Some(target) = canonical(file) else { return };
        needed.insert(self.package(&target));
        if let Some(interpreter) = interpreter(&target) {
            needed.insert(interpreter.clone());
            if let Some(target) = canonical(&interpreter) {
                needed.insert(self.package(&target));
            }
        }
    }

    /// Adds the programs that a wrapper script starts by their paths. An agent that could write the
    /// script could otherwise choose what the next one sees.
    fn add_wrapped(&self, script: &Path, needed: &mut BTreeSet<PathBuf>) {
        let Some(target) = canonical(script) else { return };
        let is_own = self.own.iter().any(|own| target.starts_with(own));
        let is_small = target.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= WRAPPER);
        if is_own || !is_small {
            return;
        }
        let text = std::fs::read_to_string(&target).unwrap_or_default();
        if !text.starts_with("#!") {
            return;
        }
        let cut = [' ', '\t', '\n', '"', '\'', ';', '=', '(', ')', '`'];
        for file in text.split(cut).map(Path::new).filter(|file| file.is_absolute()) {
            let runs = rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok();
            let is_program = file.is_file() && (runs || file.ancestors().any(is_modules));
            if is_program {
                self.add_file(file, needed);
            }
        }
    }

    /// Returns the smallest folder that a program needs to run, or the program itself.
    fn package(&self, program: &Path) -> PathBuf {
        // The outermost one has what the inner ones depend on.
        if let Some(folder) = program.ancestors().filter(|folder| is_modules(folder)).last()
            && !self.is_private(folder)
        {
            return folder.to_owned();
        }
        let folder = program.parent().and_then(|dir| self.installation(dir));
        folder.unwrap_or_else(|| program.to_owned())
    }

    /// Returns the folder of the installation that a folder of programs belongs to.
    fn installation(&self, dir: &Path) -> Option<PathBuf> {
        let named = |folder: &&Path| {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.len() > 1 && name.starts_with('.') && !COMMON.contains(&name) && name != ".bin"
        };
        // `.pyenv`, `.nvm`, `.cargo`: all of the tool is in there.
        let tool = dir.ancestors().skip(1).find(named);
        if let Some(tool) = tool.filter(|tool| !self.is_private(tool)) {
            return Some(tool.to_owned());
        }
        let (above, name) = (dir.parent()?, dir.file_name()?.to_str()?);
        let holds = |name: &str| above.join(name).exists();
        let is_installation = matches!(name, "bin" | "sbin" | "shims")
            && ["lib", "lib64", "libexec", "pyvenv.cfg"].into_iter().any(holds);
        (is_installation && !self.is_private(above) && !is_shared(above)).then(|| above.to_owned())
    }

    /// Whether showing the folder would show a private one.
    fn is_private(&self, folder: &Path) -> bool {
        self.private.iter().any(|private| private.starts_with(folder))
    }
}

fn is_modules(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name == "node_modules")
}

/// Whether the folder is one in HOME in which many programs keep their data.
fn is_shared(folder: &Path) -> bool {
    folder
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| COMMON.contains(&name))
}

/// Returns the program that a script's first line names.
fn interpreter(script: &Path) -> Option<PathBuf> {
    const LINE: u64 = 256;
    // To open a FIFO would wait for its writer.
    let mut start = vec![];
    script.metadata().ok().filter(std::fs::Metadata::is_file)?;
    std::fs::File::open(script).ok()?.take(LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = std::str::from_utf8(line).ok()?.split_whitespace().next()?;
    Some(PathBuf::from(name)).filter(|path| path.is_absolute())
}

/// Returns the parts of a command line that are absolute paths of files.
pub fn named_files(argv: &[String]) -> impl Iterator<Item = &str> {
    let cut = [' ', '\t', '\n', '"', '\'', ';', '='];
    let words = argv.iter().flat_map(move |word| word.split(cut));
    words.filter(|word| Path::new(word).is_absolute() && Path::new(word).is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn program_brings_its_package_and_never_a_private_folder() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let home = root.join("home");
        let package = home.join("lib/node_modules/agent");
        for folder in [
            &package.join("node_modules/part"),
            &home.join("bin"),
            &home.join(".local/bin"),
            &home.join(".local/lib"),
            &home.join(".pyenv/shims"),
            &root.join("venv/bin"),
        ] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        std::fs::write(root.join("venv/bin/python"), "").unwrap();
        let script = format!("#!{}\n", root.join("venv/bin/python").display());
        std::fs::write(package.join("cli.js"), script).unwrap();
        std::os::unix::fs::symlink(package.join("cli.js"), home.join("bin/agent")).unwrap();
        let path = ["bin", ".local/bin", ".pyenv/shims"].map(|name| home.join(name));
        let path = path.map(|dir| dir.display().to_string()).join(":");
        let programs = Programs {
            argv: &["agent".into()],
            env: &[("PATH".into(), path)],
            private: &[&home],
            own: &[],
        };
        let needed = programs.needed();
        for path in [
            home.join("bin"),
            home.join("lib/node_modules"),
            home.join(".local/bin"),
            home.join(".pyenv"),
            root.join("venv"),
        ] {
            assert!(needed.contains(&path), "{} in {needed:?}", path.display());
        }
        for path in [&home, &home.join(".local"), &root] {
            assert!(!needed.contains(path), "{} in {needed:?}", path.display());
        }
    }
}
