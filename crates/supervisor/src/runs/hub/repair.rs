//! The repair of a hub that an agent has removed or damaged. It is built again from the harness's own repository, which
//! has everything that was gathered; of what was only in the damaged one nothing is trusted. It is put aside as
//! `hub.damaged`, and an agent whose push was in it finds that its commits are not there, and pushes them again.
//!
//! The directory itself stays where it can: the sandbox of an agent that is at work shows it that very one.

use super::super::host::{Hosted, Places};
use super::super::{clones, keep};
use crate::beneath;
use crate::worktree::free_name;
use muleteer_store::atomic::{create_dir_durable, put_dir, write_atomic};
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Files that no push changes, and the names under which [`FORM`] has what they are to be.
const FIXED: [(&str, &str); 3] = [("HEAD", "HEAD"), ("config", "config"), ("objects/info/alternates", "alternates")];
/// In the run's private folder.
const FORM: &str = "hub-form";
const FIXED_LIMIT: u64 = 64 << 10;
/// Files that there may be.
const FILES: [&str; 3] = ["packed-refs", "shallow", "description"];
const FOLDERS: [&str; 7] = ["objects", "refs", "refs/heads", "objects/info", "objects/pack", "hooks", "info"];
/// Of more objects than these, the rest is not looked at.
const OBJECTS_LIMIT: usize = 20_000;

/// Notes what the fixed files of a hub are to be, which is made and where nobody has been yet.
pub(super) fn remember(places: &Places, made: &Path) -> Result<(), String> {
    let form = places.private.join(FORM);
    create_dir_durable(&form, 0o700).map_err(|error| crate::launch::chain(&error))?;
    for (name, kept) in FIXED {
        let path = made.join(name);
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        write_atomic(&form.join(kept), &bytes, 0o600).map_err(|error| crate::launch::chain(&error))?;
    }
    Ok(())
}

/// Whether this run has had a hub.
pub(super) fn is_known(places: &Places) -> bool {
    places.private.join(FORM).join("HEAD").exists()
}

/// Repairs the hub if it is damaged, and notes that. `objects` says whether its objects are looked at, too.
///
/// The caller holds [`Hosted::git`].
pub(super) async fn mend(hosted: &Hosted, target: &str, objects: bool) -> Result<(), String> {
    let Some(why) = damage(&hosted.places, target, objects) else { return restore_fixed(hosted, target).await };
    rebuild(hosted, target, &why).await
}

/// Puts back the fixed files that were changed: that costs no push.
async fn restore_fixed(hosted: &Hosted, target: &str) -> Result<(), String> {
    let hub = hosted.places.hub();
    for (name, kept) in FIXED {
        let Ok(wanted) = std::fs::read(hosted.places.private.join(FORM).join(kept)) else { continue };
        if beneath::read(&hub, Path::new(name), FIXED_LIMIT).is_ok_and(|there| there.as_ref() == Some(&wanted)) {
            continue;
        }
        let lock = format!("{name}.lock");
        beneath::remove(&hub, Path::new(&lock));
        if let Err(error) = beneath::replace(&hub, Path::new(name), &wanted) {
            return rebuild(hosted, target, &format!("{name}: {error}")).await;
        }
        hosted.note_repair(format!("the file {name} of the hub was changed, and is put back"));
    }
    Ok(())
}

/// Builds the hub again, and notes why.
///
/// The caller holds [`Hosted::git`].
pub(super) async fn rebuild(hosted: &Hosted, target: &str, why: &str) -> Result<(), String> {
    let partial = super::build(hosted, target).await?;
    let hub = hosted.places.hub();
    let aside = free_name(&hub, "damaged");
    let io = |error: std::io::Error| format!("cannot put the damaged hub aside: {error}");
    match std::fs::symlink_metadata(&hub) {
        Ok(meta) if meta.is_dir() => {
            std::fs::create_dir(&aside).map_err(io)?;
            match beneath::exchange(&hub, &partial, &aside) {
                Ok(()) => clones::remove(&partial).await?,
                Err(error) => {
                    tracing::warn!(%error, "failed to repair the hub in place");
                    clones::remove(&partial).await?;
                    let partial = super::build(hosted, target).await?;
                    std::fs::rename(&hub, aside.join("whole")).map_err(io)?;
                    put_dir(&partial, &hub).map_err(|error| crate::launch::chain(&error))?;
                }
            }
        }
        Ok(_) => {
            std::fs::rename(&hub, &aside).map_err(io)?;
            put_dir(&partial, &hub).map_err(|error| crate::launch::chain(&error))?;
        }
        Err(_) => put_dir(&partial, &hub).map_err(|error| crate::launch::chain(&error))?,
    }
    hosted.note_repair(format!(
        "the hub was damaged ({why}) and is built again from the harness's own repository; a push that was not gathered \
         by then is not in it"
    ));
    Ok(())
}

/// What nobody can work with, if anything.
pub(super) fn damage(places: &Places, target: &str, objects: bool) -> Option<String> {
    let hub = places.hub();
    let at = |name: &str| std::fs::symlink_metadata(hub.join(name));
    match std::fs::symlink_metadata(&hub) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Some("it is no directory".into()),
        Err(error) => return Some(error.to_string()),
    }
    let name = format!("refs/heads/{target}");
    let above = name.match_indices('/').map(|(at, _)| name[..at].to_string());
    for folder in FOLDERS.map(String::from).into_iter().chain(above) {
        let needed = folder == "objects" || folder == "refs";
        match at(&folder) {
            Ok(meta) if !meta.is_dir() => return Some(format!("{folder} is no directory")),
            Err(error) if needed => return Some(format!("{folder}: {error}")),
            _ => {}
        }
    }
    let is_odd = |meta: std::io::Result<Metadata>| meta.is_ok_and(|meta| !meta.is_file());
    let known = is_known(places);
    let fixed = FIXED.iter().map(|(name, _)| *name);
    for file in FILES.into_iter().chain(fixed).chain([name.as_str()]) {
        if is_odd(at(file)) {
            return Some(format!("{file} is no file"));
        }
    }
    // One of an earlier version has no form to be compared with.
    if !known && at("HEAD").is_err() {
        return Some("HEAD is missing".into());
    }
    if let Ok(Some(text)) = beneath::read(&hub, Path::new(&name), FIXED_LIMIT)
        && keep::hash(&text).is_none()
    {
        return Some(format!("{name} is no commit"));
    }
    if objects { broken_object(&hub) } else { None }
}

/// An object file that is none: not a file, or without the beginning that git gives each.
fn broken_object(hub: &Path) -> Option<String> {
    let folder = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let objects = hub.join("objects");
    let is_loose = |name: &str| name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut seen = 0;
    for entry in folder(objects).take(OBJECTS_LIMIT) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_loose(&name) && name != "pack" {
            continue;
        }
        for object in folder(entry.path()) {
            seen += 1;
            if seen > OBJECTS_LIMIT {
                return None;
            }
            let file = object.file_name().to_string_lossy().into_owned();
            let whole = match file.rsplit_once('.') {
                // git's own, while a push is under way.
                _ if file.starts_with("tmp_") || file.starts_with(".tmp") => true,
                Some((_, "pack")) => begins(&object.path(), |bytes| bytes.starts_with(b"PACK")),
                Some((_, "idx")) => begins(&object.path(), |bytes| bytes.starts_with(b"\xfftOc")),
                Some(_) => true,
                None if name == "pack" => true,
                None => begins(&object.path(), is_zlib),
            };
            if !whole {
                return Some(format!("objects/{name}/{file} is no object"));
            }
        }
    }
    None
}

/// The header of RFC 1950, section 2.2.
fn is_zlib(bytes: &[u8]) -> bool {
    let [method, flags, ..] = bytes else { return false };
    method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
}

/// One that has gone meanwhile is as good as whole.
fn begins(path: &Path, is_right: impl Fn(&[u8]) -> bool) -> bool {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = std::fs::OpenOptions::new();
    let file = match options.read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    let mut bytes = vec![];
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    is_file && file.take(8).read_to_end(&mut bytes).is_ok() && is_right(&bytes)
}
