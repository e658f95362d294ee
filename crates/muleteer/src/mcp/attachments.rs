//! The files of a message of an agent. The relay reads them, because it is a child of the agent and
//! has its rights: the daemon could read files that a sandbox hides from the agent.

use muleteer_protocol::v1::{AttachedFile, FILES_LIMIT};
use rmcp::model::JsonObject;
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};

const MOST_MIB: usize = FILES_LIMIT >> 20;

/// Why the files of a message cannot be attached.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unattached {
    #[error("`files` must be a list of paths")]
    NoPaths,
    #[error("cannot read {path}: {source}", path = .path.display())]
    Unread { path: PathBuf, source: std::io::Error },
    #[error("{path} is no regular file: name it in the text", path = .0.display())]
    NoFile(PathBuf),
    #[error("the files have more than {MOST_MIB} MiB together: name larger ones in the text")]
    TooLarge,
    #[error("the files could not be read: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

/// Reads the files that the arguments of a call name, relative to the relay's directory.
///
/// # Errors
/// The reason for the agent.
pub(super) async fn read(arguments: Option<&JsonObject>) -> Result<Vec<AttachedFile>, Unattached> {
    let paths = match arguments.and_then(|arguments| arguments.get("files")) {
        None | Some(Value::Null) => return Ok(vec![]),
        // As the daemon reads a list: a single value is a list of one.
        Some(Value::String(path)) => vec![PathBuf::from(path)],
        Some(Value::Array(paths)) => {
            let paths = paths.iter().map(|path| path.as_str().map(PathBuf::from));
            paths.collect::<Option<Vec<_>>>().ok_or(Unattached::NoPaths)?
        }
        Some(_) => return Err(Unattached::NoPaths),
    };
    tokio::task::spawn_blocking(move || {
        let (mut files, mut left) = (vec![], FILES_LIMIT);
        for path in &paths {
            let file = read_one(path, left)?;
            left -= file.content.len();
            files.push(file);
        }
        Ok(files)
    })
    .await?
}

fn read_one(path: &Path, most: usize) -> Result<AttachedFile, Unattached> {
    let unread = |source| Unattached::Unread { path: path.into(), source };
    // A pipe would block for ever.
    if !std::fs::metadata(path).map_err(unread)?.is_file() {
        return Err(Unattached::NoFile(path.into()));
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Unattached::NoFile(path.into()))?.to_string();
    let mut content = vec![];
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(most as u64 + 1).read_to_end(&mut content).map_err(unread)?;
    match content.len() <= most {
        true => Ok(AttachedFile { name, content }),
        false => Err(Unattached::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn read_at(files: Value) -> Result<Vec<AttachedFile>, String> {
        let arguments = json!({"text": "look", "files": files});
        read(arguments.as_object()).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn files_are_read_up_to_the_limit_of_a_message() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("a.txt"), "one").expect("a file");
        std::fs::write(path("large"), vec![0; FILES_LIMIT]).expect("a file");
        let found = read_at(json!([path("a.txt")])).await.expect("files");
        assert_eq!((found.len(), found[0].name.as_str()), (1, "a.txt"));
        assert_eq!(found[0].content, b"one");
        assert_eq!(read_at(json!(path("large"))).await.expect("files").len(), 1);
        for (files, reason) in [
            (json!([path("a.txt"), path("large")]), "more than 4 MiB together"),
            (json!([path("")]), "no regular file"),
            (json!([path("gone")]), "cannot read"),
            (json!([7]), "must be a list of paths"),
            (json!({}), "must be a list of paths"),
        ] {
            let refused = read_at(files).await.expect_err("a refusal");
            assert!(refused.contains(reason), "{refused}");
        }
        assert_eq!(read(None).await.expect("none"), []);
        assert_eq!(read_at(Value::Null).await.expect("none"), []);
    }
}
