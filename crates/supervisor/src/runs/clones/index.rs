//! An index of the harness's own, by which a clone is looked at as a mere directory of files.

use super::name_of;
use crate::git::large::{self, Large};
use crate::runs::host::Hosted;
use crate::worktree::{git, run};
use std::path::{Path, PathBuf};

/// Of more files that are too large, none is looked at.
const LARGE_LIMIT: usize = 100;

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
        Self(
            hosted
                .places
                .private
                .join(format!("index-{}-{}", name_of(dir), crate::context::random_key())),
        )
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

    /// Sees to it that no git that uses this index reads a file that is too large: of one that is tracked it is believed
    /// that it has not changed, and one that is not is taken for tracked.
    pub async fn leave_out_large(&self, hosted: &Hosted, dir: &Path, base: &str) -> Result<LeftOut, String> {
        const WHAT: &str = "cannot list the files";
        let tracked = run(self.git(hosted, dir).args(["ls-files", "-z"]), WHAT).await?;
        let new = ["ls-files", "-z", "--others", "--exclude-standard"];
        let new = run(self.git(hosted, dir).args(new), WHAT).await?;
        let top = dir.to_owned();
        let measuring =
            tokio::task::spawn_blocking(move || (large::too_large(&top, &tracked), large::too_large(&top, &new)));
        let (tracked, new) = measuring.await.map_err(|error| error.to_string())?;
        if tracked.len() + new.len() > LARGE_LIMIT {
            return Err(format!("it holds {} files that are too large to be read", tracked.len() + new.len()));
        }
        let blob = large::empty_blob(base);
        for one in &new {
            let entry = format!("100644,{blob},{}", one.path);
            let mut add = self.git(hosted, dir);
            run(add.args(["update-index", "--add", "--replace", "--cacheinfo", &entry]), WHAT).await?;
        }
        let mut all = new.clone();
        for one in &tracked {
            // As it was committed it is no loss.
            let name = format!("{base}:{}", one.path);
            let size = run(git(&hosted.places.keep()).args(["cat-file", "-s", &name]), WHAT).await;
            if size.is_ok_and(|size| size != one.bytes.to_string()) {
                all.push(one.clone());
            }
        }
        for one in new.iter().chain(&tracked) {
            let mut unread = self.git(hosted, dir);
            run(unread.args(["update-index", "--assume-unchanged", "--", &one.path]), WHAT).await?;
        }
        Ok(LeftOut { new, all })
    }

    /// Takes files out of the index that were only taken for tracked.
    pub async fn forget(&self, hosted: &Hosted, dir: &Path, files: &[Large]) -> Result<(), String> {
        for one in files {
            let mut forget = self.git(hosted, dir);
            run(forget.args(["update-index", "--force-remove", "--", &one.path]), "cannot read the tree").await?;
        }
        Ok(())
    }

    /// `git add` asks what is known as a submodule whether it has changed, by a git in it that heeds its
    /// configuration. As unknown ones only their commit is looked at.
    pub async fn forget_submodules(&self, hosted: &Hosted, dir: &Path) -> Result<(), String> {
        let mut list = self.git(hosted, dir);
        let listed = run(list.args(["ls-files", "--stage", "-z"]), "cannot read the tree").await?;
        let paths: Vec<&str> = listed
            .split('\0')
            .filter(|entry| entry.starts_with("160000 "))
            .filter_map(|entry| Some(entry.split_once('\t')?.1))
            .collect();
        for some in paths.chunks(100) {
            let mut forget = self.git(hosted, dir);
            run(forget.args(["update-index", "--force-remove", "--"]).args(some), "cannot read the tree").await?;
        }
        Ok(())
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
