//! An index of the harness's own, by which a clone is looked at as a mere directory of files.

use crate::spec_run::clones::name_of;
use crate::spec_run::host::Hosted;
use crate::vcs::user_repo::large_files::{self, Large, Listed};
use crate::vcs::user_repo::raw::{self, ATTRIBUTES_FROM};
use crate::vcs::worktree::{git, run, run_bytes, run_within};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So many files are read to learn whether they are as they were committed, each for so long. Of
/// more, or of one that takes longer, it is believed that they have changed.
const READ_LIMIT: usize = 8;
const READING: Duration = Duration::from_secs(60);

/// The files of a clone that are too large to be read.
pub(super) struct LeftOut {
    /// Those that are not tracked.
    pub new: Vec<Large>,
    /// Those, and the tracked ones that have changed.
    pub all: Vec<Large>,
}

/// An index of our own, taken away with the value.
pub(super) struct Index(PathBuf);

impl Index {
    pub fn new(hosted: &Hosted, dir: &Path) -> Self {
        Self(hosted.places.private.join(format!(
            "index-{}-{}",
            name_of(dir),
            crate::daemon::context::random_key()
        )))
    }

    pub fn git(&self, hosted: &Hosted, dir: &Path) -> tokio::process::Command {
        let own = hosted.places.keep();
        let mut command = git(&own);
        command
            .arg("-c")
            .arg("core.bare=false")
            .arg("--git-dir")
            .arg(&own)
            .arg("--work-tree")
            .arg(dir)
            .env("GIT_INDEX_FILE", &self.0);
        command
    }

    /// As [`Self::git`], deaf to the attributes that files in the clone set: git fails over some.
    pub fn plain(&self, hosted: &Hosted, dir: &Path, base: &str) -> tokio::process::Command {
        let mut command = self.git(hosted, dir);
        command.env(ATTRIBUTES_FROM, large_files::empty_tree(base));
        command
    }

    /// Takes in everything that lies there. A file that git cannot convert as its attributes say is
    /// taken in as it is.
    pub async fn add_all(
        &self,
        hosted: &Hosted,
        dir: &Path,
        base: &str,
        (patience, what): (Duration, &str),
    ) -> Result<(), String> {
        let add = async || {
            run_within(self.git(hosted, dir).args(["add", "--all"]), patience, what).await.map(drop)
        };
        if add().await.is_ok() {
            return Ok(());
        }
        // A file that lies there as the index has it is not read by `git add`. It complains of
        // others.
        let mut refresh = self.plain(hosted, dir, base);
        drop(run(refresh.args(["update-index", "-q", "--refresh"]), what).await);
        let mut paths = vec![];
        for which in [&["--others", "--exclude-standard"][..], &["--modified"]] {
            let mut list = self.plain(hosted, dir, base);
            paths.extend(run_bytes(list.args(["ls-files", "-z"]).args(which), what).await?);
        }
        let git = || self.git(hosted, dir);
        let raw = raw::find(&git, dir, &paths, &self.list()).await?;
        self.update(hosted, dir, (&["--index-info"], &raw.entries), what).await?;
        self.update(hosted, dir, (&["--assume-unchanged", "--stdin"], &raw.odd), what).await?;
        add().await
    }

    /// Sees to it that no git that uses this index reads a file that is too large: of one that is
    /// tracked it is believed that it has not changed, and one that is not is taken for tracked.
    pub async fn leave_out_large(
        &self,
        hosted: &Hosted,
        dir: &Path,
        base: &str,
    ) -> Result<LeftOut, String> {
        const WHAT: &str = "cannot list the files";
        let tracked = run_bytes(self.git(hosted, dir).args(["ls-files", "-z"]), WHAT).await?;
        let new = ["ls-files", "-z", "--others", "--exclude-standard"];
        let new = run_bytes(self.git(hosted, dir).args(new), WHAT).await?;
        let (top, checked_out) = (dir.to_owned(), crate::spec_run::clones::made_at(hosted, dir));
        let measuring = tokio::task::spawn_blocking(move || {
            let listed = Listed { new: &new, tracked: &tracked, checked_out };
            large_files::too_large(&top, listed)
        });
        let (new, tracked) = measuring.await.map_err(|error| error.to_string())?;
        let mut all = new.clone();
        if new.is_empty() && tracked.is_empty() {
            return Ok(LeftOut { new, all });
        }
        let blob = large_files::empty_blob(base);
        let entries: Vec<u8> =
            new.iter().flat_map(|one| large_files::as_empty(one, blob)).collect();
        self.update(hosted, dir, (&["--index-info"], &entries), WHAT).await?;
        let mut read = 0;
        for one in tracked.iter().filter(|one| !one.is_untouched) {
            // As it was committed it is no loss.
            let may_be = read < READ_LIMIT && is_as_long(hosted, base, one).await;
            read += usize::from(may_be);
            if !(may_be && is_as_committed(hosted, dir, base, one).await) {
                all.push(one.clone());
            }
        }
        let unread = large_files::paths(new.iter().chain(&tracked));
        self.update(hosted, dir, (&["--assume-unchanged", "--stdin"], &unread), WHAT).await?;
        Ok(LeftOut { new, all })
    }

    /// Takes files out of the index that were only taken for tracked.
    pub async fn forget(&self, hosted: &Hosted, dir: &Path, files: &[Large]) -> Result<(), String> {
        let paths = large_files::paths(files);
        let args = ["--force-remove", "--stdin"];
        self.update(hosted, dir, (&args, &paths), "cannot read the tree").await
    }

    /// Runs `git update-index -z` with these arguments and this input.
    async fn update(
        &self,
        hosted: &Hosted,
        dir: &Path,
        (args, input): (&[&str], &[u8]),
        what: &str,
    ) -> Result<(), String> {
        if input.is_empty() {
            return Ok(());
        }
        let list = self.list();
        let failed = |error: std::io::Error| format!("{what}: {}: {error}", list.display());
        std::fs::write(&list, input).map_err(failed)?;
        let mut update = self.git(hosted, dir);
        update.args(["update-index", "-z"]).args(args).stdin(File::open(&list).map_err(failed)?);
        run(&mut update, what).await.map(drop)
    }

    /// A git reads its input from here.
    fn list(&self) -> PathBuf {
        self.0.with_extension("list")
    }

    /// `git add` asks what is known as a submodule whether it has changed, by a git in it that
    /// heeds its configuration. As unknown ones only their commit is looked at.
    pub async fn forget_submodules(&self, hosted: &Hosted, dir: &Path) -> Result<(), String> {
        let mut list = self.git(hosted, dir);
        let listed =
            run_bytes(list.args(["ls-files", "--stage", "-z"]), "cannot read the tree").await?;
        let paths: Vec<u8> = listed
            .split_inclusive(|byte| *byte == 0)
            .filter(|entry| entry.starts_with(b"160000 "))
            .filter_map(|entry| entry.splitn(2, |byte| *byte == b'\t').nth(1))
            .flatten()
            .copied()
            .collect();
        let args = ["--force-remove", "--stdin"];
        self.update(hosted, dir, (&args, &paths), "cannot read the tree").await
    }
}

/// The name of a tracked file as git has it in a commit.
fn committed(base: &str, one: &Large) -> OsString {
    [OsStr::new(base), OsStr::new(":"), one.path.as_os_str()].into_iter().collect()
}

async fn is_as_long(hosted: &Hosted, base: &str, one: &Large) -> bool {
    let mut ask = git(&hosted.places.keep());
    let size = run(ask.args(["cat-file", "-s"]).arg(committed(base, one)), "").await;
    size.is_ok_and(|size| size == one.bytes.to_string())
}

/// Whether a file that is as long as what was committed has the same content. It is read as it is:
/// git changes no byte of it, and runs no filter.
async fn is_as_committed(hosted: &Hosted, dir: &Path, base: &str, one: &Large) -> bool {
    let keep = hosted.places.keep();
    let mut ask = git(&keep);
    let known = run(ask.args(["rev-parse", "--verify"]).arg(committed(base, one)), "").await;
    let mut hash = git(&keep);
    hash.args(["hash-object", "--no-filters", "--"]).arg(dir.join(&one.path));
    let found = run_within(&mut hash, READING, "").await;
    known.is_ok_and(|known| found.is_ok_and(|found| found == known))
}

impl Drop for Index {
    fn drop(&mut self) {
        for path in [&self.0, &self.list()] {
            let _ = std::fs::remove_file(path);
        }
    }
}
