//! Warnings about the place in which agents work: a checkout that they share, and files that their
//! clones will not contain.

use crate::daemon::context::Daemon;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_vcs::user_repo::{Git, LfsContent};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The number of dispatches that a warning names.
const NAMED: usize = 3;
/// Folders of Muleteer's own, which clones need not contain.
const OWN: [&str; 2] = [".muleteer/", ".agents/"];

/// The content of Git LFS files in clones: see [`LfsContent`].
#[derive(Debug)]
pub(crate) enum Lfs {
    Copied { path: Option<String> },
    Absent,
}

impl Lfs {
    /// Returns what the clones of agents with these variables get. A later variable replaces an
    /// earlier one.
    pub(crate) fn for_agents<'a>(
        variables: impl DoubleEndedIterator<Item = &'a (String, String)>,
    ) -> Self {
        let path = variables.rev().find(|(name, _)| name == "PATH");
        Self::Copied { path: path.map(|(_, value)| value.clone()) }
    }
}

/// Returns a warning for each kind of files that clones of the repository around `dir` lack. The
/// agents get the text of `spec` in their prompts, so a warning does not name it.
pub(crate) async fn of_clones(dir: &Path, spec: Option<&Path>, lfs: Lfs) -> Vec<String> {
    let (dir, spec) = (dir.to_path_buf(), spec.map(Path::to_path_buf));
    let looked = tokio::task::spawn_blocking(move || {
        // A repository that git cannot open is reported by what needs it.
        let Ok(git) = Git::open(&dir) else { return vec![] };
        let content = match &lfs {
            Lfs::Copied { path } => LfsContent::Copied { path: path.as_deref() },
            Lfs::Absent => LfsContent::Absent,
        };
        let mut missing = git.missing_in_clones(content);
        missing.uncommitted.retain(|name| {
            spec.as_deref() != Some(&git.top().join(name))
                && !OWN.iter().any(|own| name.starts_with(own))
        });
        missing.warnings()
    });
    looked.await.unwrap_or_default()
}

/// Returns a warning if other agents work in the checkout that `dir` is in. The ancestors of `own`
/// do not count: they wait for it, or direct it.
pub(crate) fn of_checkout(daemon: &Daemon, dir: &Path, own: Option<&DispatchId>) -> Option<String> {
    let fleet = daemon.snapshot();
    sharing(&fleet, dir, own)
}

fn sharing(fleet: &Fleet, dir: &Path, own: Option<&DispatchId>) -> Option<String> {
    let mut above = HashSet::new();
    let mut next = own;
    while let Some(id) = next.filter(|id| above.insert((*id).clone())) {
        next = fleet.get(id).and_then(|dispatch| dispatch.created.parent.as_ref());
    }
    let checkout = checkout_of(dir);
    // Many dispatches have few directories, and each request asks about all dispatches: so a
    // directory is judged once, and neighbours in one directory cost a comparison.
    let mut known: HashMap<&str, bool> = HashMap::new();
    let mut last = ("", false);
    let mut is_there = |place| {
        if last.0 != place {
            let judge = || {
                let path = Path::new(place);
                path.starts_with(&checkout) && checkout_of(path) == checkout
            };
            last = (place, *known.entry(place).or_insert_with(judge));
        }
        last.1
    };
    let mut others = fleet
        .unfinished()
        .filter(|other| is_there(other.created.directory()))
        .filter(|other| !above.contains(&other.id) && !other.holds_idle())
        .map(|other| other.id.as_str());
    let first: Vec<&str> = others.by_ref().take(NAMED).collect();
    let more = match others.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!first.is_empty()).then(|| {
        format!(
            "other agents work in the same checkout {}, and their changes mix: {}{more}; give \
             each agent its own clone with --worktree",
            checkout.display(),
            first.join(", ")
        )
    })
}

/// Returns the directory with the `.git` that git would use in `dir`; `dir` itself without one.
fn checkout_of(dir: &Path) -> PathBuf {
    dir.ancestors().find(|above| above.join(".git").exists()).unwrap_or(dir).to_path_buf()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::event::{Entry, Event, Record, VERSION};

    fn id(number: u8) -> DispatchId {
        DispatchId::from_random([number; 5])
    }

    fn fleet(places: &[(u8, &Path, Option<&Path>, Option<u8>)]) -> Fleet {
        let mut fleet = Fleet::default();
        for (at, (number, project, clone, parent)) in (1..).zip(places) {
            let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created")
            else {
                panic!("another sample")
            };
            created.project = project.display().to_string();
            created.worktree = clone.map(|clone| clone.display().to_string());
            created.repository = None;
            created.parent = parent.map(id);
            let entry = Entry {
                id: format!("e{at}"),
                dispatch_id: Some(id(*number)),
                at: None,
                more: false,
                event: Event::DispatchCreated(created),
            };
            let ts = jiff::Timestamp::UNIX_EPOCH;
            fleet.apply(&Record { v: VERSION, seq: at, ts, entry });
        }
        fleet
    }

    #[test]
    fn agents_in_one_checkout_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (repo, other) = (dir.path().join("repo"), dir.path().join("repo/vendor/other"));
        let clone = repo.join(".muleteer/worktrees/c");
        for place in [&repo, &other, &clone] {
            std::fs::create_dir_all(place.join(".git")).unwrap();
        }
        let web = repo.join("web");
        std::fs::create_dir(&web).unwrap();
        let all = fleet(&[
            (1, &repo, None, None),
            (2, &repo, Some(&clone), None),
            (3, &other, None, None),
            (4, &web, None, None),
            (5, &clone, None, Some(2)),
        ]);
        let named = |dir: &Path, own: u8| {
            let said = sharing(&all, dir, Some(&id(own))).unwrap_or_default();
            (1..=5).filter(|n| said.contains(id(*n).as_str())).collect::<Vec<u8>>()
        };
        assert_eq!(named(&repo, 1), [4], "neither clones nor nested repositories share it");
        assert_eq!(named(&web, 4), [1]);
        assert_eq!(named(&other, 3), [0; 0]);
        assert_eq!(named(&clone, 5), [0; 0], "its parent waits for it");
        assert_eq!(named(&repo, 9), [1, 4]);
        assert_eq!(sharing(&Fleet::default(), &repo, None), None);
    }
}
