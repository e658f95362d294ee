//! Builds the view of a sandbox: a new root in memory, with nothing but the places of the plan, a
//! minimal `/dev` and a fresh `/proc`.
//!
//! ```text
//!  [`View::build`], outside the pid namespace      [`View::enter`], as its first process
//!  opens every place by descriptor ─▶ a tmpfs ─▶   /proc ─▶ pivot_root ─▶ the old root is gone
//! ```
//!
//! Every path is resolved without links, by descriptor. Another agent that can write beside a path
//! could otherwise turn a mount elsewhere by a link that it makes in the meantime.

use super::{Place, Plan, SandboxError, What, at};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount,
    mount_change, move_mount, open_tree, unmount,
};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The devices of the machine that an agent gets.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// The links of a `/dev`, and their targets.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Files of `/proc` with settings and commands of the system; the agent may only read them.
const READ_ONLY_PROC: [&str; 4] = ["sys", "sysrq-trigger", "irq", "bus"];
/// Files of `/proc` that tell of the whole machine; the agent finds them empty.
const CLOSED_PROC: [&str; 4] = ["kcore", "keys", "key-users", "timer_list"];
/// The folder in the new root that holds the agent's own empty directories.
const SCRATCH: &str = ".scratch";
/// A mount point can be anywhere; the new root covers it until it becomes the root.
const BASES: [&str; 3] = ["/tmp", "/mnt", "/proc"];

const SAFE: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

type Step<T> = Result<T, SandboxError>;

fn errno(step: impl Into<String>) -> impl FnOnce(Errno) -> SandboxError {
    let step = step.into();
    move |error| at(step)(error.into())
}

/// A new root that is complete except for `/proc`.
#[derive(Debug)]
pub(super) struct View {
    root: OwnedFd,
    /// Files of `/proc` are covered. The kernel then allows no other `/proc` below this view, so a
    /// nested sandbox needs them uncovered. Only root could write them.
    covers_proc: bool,
}

impl View {
    /// Builds the root of `plan`. The caller has its own user and mount namespace.
    pub(super) fn build(plan: &Plan) -> Step<Self> {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(errno("private mounts"))?;
        let places = plan.in_order();
        // Opened while everything is visible: the new root covers a folder.
        let sources: Vec<Source> = places.iter().map(|place| source(place)).collect::<Step<_>>()?;
        let devices: Vec<_> =
            DEVICES.iter().map(|name| (*name, clone(&Path::new("/dev").join(name)))).collect();
        let console = console();
        let root = tmpfs(plan.scratch_bytes, c"0755").map_err(errno("tmpfs of the new root"))?;
        let base = BASES.iter().find(|base| Path::new(base).is_dir()).unwrap_or(&BASES[0]);
        move_mount(&root, "", CWD, *base, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(errno(format!("mount the new root on {base}")))?;
        let mut view =
            Builder { root, scratch: 0, hidden: vec![], empty: None, folders: BTreeMap::new() };
        view.devices(devices, console)?;
        view.target(Path::new("/proc"), true).map_err(errno("make /proc"))?;
        for (place, source) in places.iter().zip(sources) {
            view.add(plan, place, source)?;
        }
        let is_root = rustix::process::getuid().is_root();
        view.finish(!plan.nested || is_root)
    }

    /// Mounts `/proc`, makes the view the root, and enters `cwd`. Only for the first process of a
    /// pid namespace.
    pub(super) fn enter(&self, cwd: &Path) -> Step<()> {
        self.proc()?;
        rustix::process::fchdir(&self.root).map_err(errno("enter the new root"))?;
        rustix::process::pivot_root(".", ".").map_err(errno("pivot_root"))?;
        unmount(".", UnmountFlags::DETACH).map_err(errno("leave the old root"))?;
        std::env::set_current_dir(cwd).map_err(at(format!("chdir {}", cwd.display())))
    }

    fn proc(&self) -> Step<()> {
        let proc = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)
            .and_then(|fs| {
                fsconfig_create(&fs)?;
                let flags = SAFE | MountAttrFlags::MOUNT_ATTR_NOEXEC;
                fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
            })
            .map_err(errno("proc"))?;
        let folder = beneath(&self.root, Path::new("proc"), true).map_err(errno("open /proc"))?;
        attach(&proc, &folder).map_err(errno("mount /proc"))?;
        if !self.covers_proc {
            return Ok(());
        }
        for name in READ_ONLY_PROC {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let Ok(tree) = open_tree(&proc, name, flags) else { continue };
            set(&tree, MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                .map_err(at(format!("read-only /proc/{name}")))?;
            let target = beneath(&proc, Path::new(name), false).map_err(errno("open /proc/sys"))?;
            attach(&tree, &target).map_err(errno(format!("mount /proc/{name}")))?;
        }
        for name in CLOSED_PROC {
            let Ok(target) = beneath(&proc, Path::new(name), false) else { continue };
            let null = clone(Path::new("/dev/null")).map_err(errno("open /dev/null"))?;
            set(&null, SAFE | MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                .map_err(at(format!("close /proc/{name}")))?;
            attach(&null, &target).map_err(errno(format!("close /proc/{name}")))?;
        }
        Ok(())
    }
}

/// The part of the machine that a place shows.
enum Source {
    /// The place needs none.
    None,
    /// The path does not exist, so the place is left out.
    Missing,
    Tree(OwnedFd),
    /// The folders of an overlay: the machine's, and those for changes and for the kernel.
    Layers([OwnedFd; 3]),
}

fn source(place: &Place) -> Step<Source> {
    let from = match &place.what {
        What::Hidden | What::Scratch | What::Link(_) => return Ok(Source::None),
        What::Show | What::Write => place.path.as_path(),
        What::Instead(other) => other.as_path(),
        What::Closed => Path::new("/dev/null"),
        What::Overlay { changes, work } => return layers(&place.path, changes, work),
    };
    match clone(from) {
        Ok(tree) => Ok(Source::Tree(tree)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Source::Missing),
        Err(error) => Err(errno(format!("open {}", from.display()))(error)),
    }
}

fn layers(lower: &Path, changes: &Path, work: &Path) -> Step<Source> {
    let open =
        |path: &Path| open_path(path, true).map_err(errno(format!("open {}", path.display())));
    let lower = match open_path(lower, true) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Source::Missing),
        other => other.map_err(errno(format!("open {}", lower.display())))?,
    };
    Ok(Source::Layers([lower, open(changes)?, open(work)?]))
}

/// Opens a path of the machine as a mount of its own. A link is not followed.
fn clone(path: &Path) -> rustix::io::Result<OwnedFd> {
    let found = open_path(path, false)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(&found, "", flags)
}

/// Opens a folder of the view as a mount of its own, without the mounts in it.
fn clone_of(folder: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(folder, "", flags)
}

fn open_path(path: &Path, directory: bool) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, flags(directory), Mode::empty(), resolve)
}

/// Opens a path below `root`, without following a link.
fn beneath(root: impl AsFd, path: &Path, directory: bool) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags(directory), Mode::empty(), resolve)
}

fn flags(directory: bool) -> OFlags {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if directory { flags | OFlags::DIRECTORY } else { flags }
}

fn attach(tree: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags)
}

/// Makes a file system in memory. `bytes` is its limit; 0 stands for the kernel's own.
fn tmpfs(bytes: u64, mode: &CStr) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if bytes > 0 {
        fsconfig_set_string(&fs, "size", bytes.to_string())?;
    }
    fsconfig_set_string(&fs, "mode", mode)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, SAFE)
}

/// Returns the agent's own terminal, if it has one. Programs look for its name in `/dev`.
fn console() -> Option<OwnedFd> {
    // SAFETY: descriptor 0 is this process's for as long as it runs.
    #[allow(unsafe_code)]
    let stdin = unsafe { BorrowedFd::borrow_raw(0) };
    let name = rustix::termios::ttyname(stdin, vec![]).ok()?;
    clone(Path::new(OsStr::from_bytes(name.as_bytes()))).ok()
}

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Adds flags to a mount, or to all mounts of its tree.
fn set(tree: impl AsFd, attributes: MountAttrFlags, recursive: bool) -> io::Result<()> {
    let attr = MountAttr { set: attributes.bits().into(), ..MountAttr::default() };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is NUL-terminated, and the structure as large as is said.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct Builder {
    root: OwnedFd,
    /// How many of the agent's own directories there are.
    scratch: usize,
    /// The mounts that become read-only when all mount points in them exist.
    hidden: Vec<(PathBuf, OwnedFd)>,
    /// The first hidden folder with no place in it. Others show the same empty file system, because
    /// each new one costs as much as six mounts.
    empty: Option<OwnedFd>,
    /// The folders that were made in the new root, by their relative paths, as far as nothing is
    /// mounted on them. Most places lie beside others, and opening each one from the root takes
    /// three opens for every folder that is made.
    folders: BTreeMap<PathBuf, Rc<OwnedFd>>,
}

impl Builder {
    /// Mounts `tree` at `path`, where `target` is. The open folders below are covered then.
    fn mount(&mut self, tree: impl AsFd, path: &Path, target: &OwnedFd) -> rustix::io::Result<()> {
        self.cover(path);
        attach(tree, target)
    }

    /// Forgets the open folders at and below a path on which something is mounted.
    fn cover(&mut self, path: &Path) {
        let path = relative(path);
        self.folders.retain(|folder, _| !folder.starts_with(path));
    }

    fn devices(
        &mut self,
        devices: Vec<(&str, rustix::io::Result<OwnedFd>)>,
        console: Option<OwnedFd>,
    ) -> Step<()> {
        let dev = Path::new("/dev");
        let own = console.map(|tree| ("console", Ok(tree)));
        for (name, tree) in devices.into_iter().chain(own) {
            let Ok(tree) = tree else { continue };
            set(&tree, MountAttrFlags::MOUNT_ATTR_NOSUID, false)
                .map_err(at(format!("flags of /dev/{name}")))?;
            let path = dev.join(name);
            let target = self.target(&path, false).map_err(errno(format!("make /dev/{name}")))?;
            self.mount(&tree, &path, &target).map_err(errno(format!("mount /dev/{name}")))?;
        }
        let pts = dev.join("pts");
        let folder = self.target(&pts, true).map_err(errno("make /dev/pts"))?;
        let terminals = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)
            .and_then(|fs| {
                fsconfig_set_string(&fs, "ptmxmode", "0666")?;
                fsconfig_set_string(&fs, "mode", "0620")?;
                fsconfig_create(&fs)?;
                let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
                fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
            })
            .map_err(errno("devpts"))?;
        self.mount(&terminals, &pts, &folder).map_err(errno("mount /dev/pts"))?;
        for (name, to) in DEVICE_LINKS {
            self.link(&dev.join(name), Path::new(to))
                .map_err(errno(format!("make /dev/{name}")))?;
        }
        Ok(())
    }

    fn add(&mut self, plan: &Plan, place: &Place, source: Source) -> Step<()> {
        let (path, shown) = (&place.path, place.path.display());
        if path.components().count() < 2 {
            return Ok(());
        }
        match (&place.what, source) {
            (_, Source::Missing) => Ok(()),
            (What::Link(to), _) => {
                self.link(path, to).map_err(errno(format!("make the link {shown}")))
            }
            (What::Hidden, _) => self.hide(plan, path),
            (What::Scratch, _) => self.own(path),
            (What::Closed, Source::Tree(tree)) => {
                // A socket in a hidden directory is already unreachable.
                let Ok(target) = beneath(&self.root, relative(path), false) else { return Ok(()) };
                set(&tree, SAFE | MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                    .map_err(at(format!("close {shown}")))?;
                self.mount(&tree, path, &target).map_err(errno(format!("close {shown}")))
            }
            (What::Overlay { .. }, Source::Layers(layers)) => self.overlay(path, &layers),
            (what, Source::Tree(tree)) => {
                let kind = rustix::fs::fstat(&tree)
                    .map(|stat| FileType::from_raw_mode(stat.st_mode))
                    .map_err(errno(format!("stat {shown}")))?;
                let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
                // A device that the configuration shows.
                if !kind.is_char_device() {
                    flags |= MountAttrFlags::MOUNT_ATTR_NODEV;
                }
                if *what == What::Show {
                    flags |= MountAttrFlags::MOUNT_ATTR_RDONLY;
                }
                set(&tree, flags, true).map_err(at(format!("flags of {shown}")))?;
                let target = self.target(path, kind.is_dir());
                let target = target.map_err(errno(format!("a place for {shown}")))?;
                self.mount(&tree, path, &target).map_err(errno(format!("mount {shown}")))
            }
            (_, Source::None | Source::Layers(_)) => Ok(()),
        }
    }

    /// Makes an empty directory. It needs no mount where nothing of the machine is shown.
    fn hide(&mut self, plan: &Plan, path: &Path) -> Step<()> {
        // Where it cannot be made, it never existed.
        let Ok(target) = self.target(path, true) else { return Ok(()) };
        if plan.above(path).is_none() {
            return Ok(());
        }
        let shown = path.display();
        let has_places =
            plan.places.iter().any(|other| other.path != path && other.path.starts_with(path));
        if let Some(empty) = self.empty.as_ref().filter(|_| !has_places) {
            let tree = clone_of(empty).map_err(errno(format!("an empty folder for {shown}")))?;
            return self.mount(&tree, path, &target).map_err(errno(format!("mount {shown}")));
        }
        let tree = tmpfs(1 << 20, c"0755").map_err(errno(format!("tmpfs over {shown}")))?;
        self.mount(&tree, path, &target).map_err(errno(format!("mount {shown}")))?;
        if has_places {
            self.hidden.push((path.to_owned(), tree));
        } else {
            set(&tree, MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                .map_err(at(format!("read-only {shown}")))?;
            self.empty = Some(tree);
        }
        Ok(())
    }

    /// Makes a directory of the agent's own. All of them share the memory of the new root.
    fn own(&mut self, path: &Path) -> Step<()> {
        let shown = path.display();
        let Ok(target) = self.target(path, true) else { return Ok(()) };
        let name = Path::new("/").join(SCRATCH).join(self.scratch.to_string());
        self.scratch += 1;
        let folder = self.target(&name, true).map_err(errno(format!("a folder for {shown}")))?;
        let tree = clone_of(&folder).map_err(errno(format!("open a folder for {shown}")))?;
        rustix::fs::chmodat(
            &self.root,
            relative(&name),
            Mode::from_raw_mode(0o1777),
            rustix::fs::AtFlags::empty(),
        )
        .map_err(errno(format!("mode of {shown}")))?;
        self.mount(&tree, path, &target).map_err(errno(format!("mount {shown}")))
    }

    /// Shows a folder whose changes go elsewhere. Where the kernel has no overlays for this, the
    /// agent gets the folder for the changes, which is empty at first.
    fn overlay(&mut self, path: &Path, layers: &[OwnedFd; 3]) -> Step<()> {
        let shown = path.display();
        let target = self.target(path, true);
        let target = target.map_err(errno(format!("a place for {shown}")))?;
        self.cover(path);
        let [lower, changes, work] =
            layers.each_ref().map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd()));
        let options = format!("lowerdir={lower},upperdir={changes},workdir={work},userxattr");
        let options = CString::new(options).unwrap_or_default();
        let at_target = format!("/proc/self/fd/{}", target.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if mount("overlay", at_target.as_str(), "overlay", flags, Some(options.as_c_str())).is_ok()
        {
            return Ok(());
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&layers[1], "", flags).map_err(errno(format!("open {changes}")))?;
        set(&tree, SAFE, true).map_err(at(format!("flags of {shown}")))?;
        attach(&tree, &target).map_err(errno(format!("mount {shown}")))
    }

    fn link(&mut self, path: &Path, to: &Path) -> rustix::io::Result<()> {
        if beneath(&self.root, relative(path), false).is_ok() {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let parent = self.target(parent, true)?;
        rustix::fs::symlinkat(to, &parent, name)
    }

    /// Opens the mount point at `path`, and creates it if it is missing.
    fn target(&mut self, path: &Path, directory: bool) -> rustix::io::Result<Rc<OwnedFd>> {
        let path = relative(path);
        let (mut missing, mut at) = (vec![], path);
        let (mut folder, mut is_ours) = loop {
            if let Some(known) = self.folders.get(at) {
                break (known.clone(), true);
            }
            let above = at.parent().map_or(Path::new(""), |above| above);
            if at.as_os_str().is_empty() || !self.folders.contains_key(above) {
                match beneath(&self.root, relative(at), directory || at != path) {
                    Err(Errno::NOENT) => {}
                    other => break (Rc::new(other?), at.as_os_str().is_empty()),
                }
            }
            missing.extend(at.file_name());
            at = above;
        };
        let mut at = at.to_owned();
        while let Some(name) = missing.pop() {
            let is_file = missing.is_empty() && !directory;
            let made = if is_file {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o644)).map(drop)
            } else {
                rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o755))
            };
            match made {
                // A read-only file system says so before it says that the name exists.
                Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
            folder = Rc::new(beneath(&*folder, Path::new(name), !is_file)?);
            at.push(name);
            // A folder that exists already may be a mount of the machine's folder, in which
            // another process could replace a folder by another one.
            is_ours &= made.is_ok() && !is_file;
            if is_ours {
                self.folders.insert(at.clone(), folder.clone());
            }
        }
        Ok(folder)
    }

    fn finish(self, covers_proc: bool) -> Step<View> {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        for (path, tree) in &self.hidden {
            set(tree, read_only, false).map_err(at(format!("read-only {}", path.display())))?;
        }
        set(&self.root, read_only, false).map_err(at("read-only /"))?;
        Ok(View { root: self.root, covers_proc })
    }
}

fn relative(path: &Path) -> &Path {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
