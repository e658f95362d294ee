//! The file operations of the log, so that tests can make each of them fail.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

pub(crate) trait Medium: Debug + Send {
    /// Like `pwrite(2)`: may write less than requested.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    fn sync(&mut self) -> io::Result<()>;
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Returns the length, and whether the file still has a name.
    fn stat(&mut self) -> io::Result<(u64, bool)>;
}

impl Medium for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn stat(&mut self) -> io::Result<(u64, bool)> {
        let meta = self.metadata()?;
        Ok((meta.len(), meta.nlink() > 0))
    }
}
