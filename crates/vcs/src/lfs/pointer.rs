//! Pointers: the small files that a commit has in place of the files that git-lfs keeps.
//!
//! The format is <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>. A commit of an agent
//! may have any bytes, so anything that git-lfs itself would not write is no pointer.

/// git-lfs writes no longer pointer.
pub(crate) const LONGEST: u64 = 1024;
/// The first lines that git-lfs has written since its beginning.
const VERSIONS: [&str; 3] = [
    "version https://git-lfs.github.com/spec/v1",
    "version https://hawser.github.com/spec/v1",
    "version http://git-media.io/v/2",
];

/// The name and the length of a file's content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pointer {
    /// The SHA-256 of the stored object, as 64 lower-case hex digits.
    pub oid: String,
    pub size: u64,
    /// The stored object is the file itself. An extension of git-lfs stores something else.
    pub is_plain: bool,
}

impl Pointer {
    /// Parses the content of a file; `None` if it is no pointer.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() as u64 > LONGEST {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n');
        if !VERSIONS.contains(&lines.next()?) {
            return None;
        }
        let mut line = lines.next()?;
        let mut is_plain = true;
        while let Some(extension) = line.strip_prefix("ext-") {
            let (name, hash) = extension.split_once(' ')?;
            let (priority, name) = name.split_once('-')?;
            let is_named = priority.len() == 1
                && priority.bytes().all(|byte| byte.is_ascii_digit())
                && !name.is_empty();
            oid(hash).filter(|_| is_named)?;
            is_plain = false;
            line = lines.next()?;
        }
        let oid = oid(line.strip_prefix("oid ")?)?;
        let digits = lines.next()?.strip_prefix("size ")?;
        let is_number = !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'));
        let size =
            digits.parse::<u64>().ok().filter(|size| is_number && *size <= i64::MAX as u64)?;
        lines.next().is_none().then_some(Self { oid, size, is_plain })
    }
}

/// Parses a hash with its method in front.
fn oid(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    let is_hash =
        hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hash.then(|| hex.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn text(version: &str, rest: &str) -> String {
        format!("version {version}\n{rest}")
    }

    #[test]
    fn pointers_of_git_lfs_are_parsed() {
        let v1 = "https://git-lfs.github.com/spec/v1";
        let plain = Pointer { oid: OID.into(), size: 3, is_plain: true };
        for version in [v1, "https://hawser.github.com/spec/v1"] {
            let said = text(version, &format!("oid sha256:{OID}\nsize 3\n"));
            assert_eq!(Pointer::parse(said.as_bytes()), Some(plain.clone()), "{version}");
        }
        let extended = text(
            v1,
            &format!("ext-0-x sha256:{OID}\next-1-y sha256:{OID}\noid sha256:{OID}\nsize 3\n"),
        );
        let found = Pointer::parse(extended.as_bytes());
        assert_eq!(found, Some(Pointer { is_plain: false, ..plain }));
    }

    #[test]
    fn other_files_are_no_pointers() {
        let v1 = "https://git-lfs.github.com/spec/v1";
        let long = "x".repeat(2000);
        for said in [
            String::new(),
            "version https://git-lfs.github.com/spec/v1".into(),
            text("https://example.org/spec/v1", &format!("oid sha256:{OID}\nsize 3\n")),
            text(v1, &format!("oid sha256:{OID}\nsize 3")),
            text(v1, &format!("oid sha256:{OID}\r\nsize 3\r\n")),
            text(v1, &format!("oid sha256:{OID}\nsize 3\n\n")),
            text(v1, &format!("oid sha256:{OID}\nsize 3\nmore\n")),
            text(v1, &format!("size 3\noid sha256:{OID}\n")),
            text(v1, &format!("oid sha256:{}\nsize 3\n", OID.to_uppercase())),
            text(v1, &format!("oid sha256:{}\nsize 3\n", &OID[1..])),
            text(v1, &format!("oid md5:{OID}\nsize 3\n")),
            text(v1, "oid sha256:../../../../../../../../../../../etc/passwd\nsize 3\n"),
            text(v1, &format!("oid sha256:{OID}\nsize +3\n")),
            text(v1, &format!("oid sha256:{OID}\nsize -3\n")),
            text(v1, &format!("oid sha256:{OID}\nsize 03\n")),
            text(v1, &format!("oid sha256:{OID}\nsize \n")),
            text(v1, &format!("oid sha256:{OID}\nsize 99999999999999999999\n")),
            text(v1, &format!("oid sha256:{OID}\nsize 18446744073709551615\n")),
            text(v1, &format!("ext-0 sha256:{OID}\noid sha256:{OID}\nsize 3\n")),
            text(v1, &format!("ext-0-{long} sha256:{OID}\noid sha256:{OID}\nsize 3\n")),
        ] {
            assert_eq!(Pointer::parse(said.as_bytes()), None, "{said:?}");
        }
        let odd = [text(v1, "oid ").as_bytes(), &[0xff, b'\n']].concat();
        assert_eq!(Pointer::parse(&odd), None);
    }
}
