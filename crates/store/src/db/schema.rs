//! The tables, and opening a file with any contents.

use crate::db::{Opened, SCHEMA_VERSION, error};
use crate::error::StoreError;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// "MULE" in the file's header distinguishes our database from another program's.
const APPLICATION_ID: i64 = 0x4d55_4c45;

const TABLES: &str = "
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    applied_seq INTEGER NOT NULL,
    -- 0 while the tables are filled again from the beginning of the log.
    complete INTEGER NOT NULL
);
INSERT INTO meta VALUES (1, 0, 1);
CREATE TABLE dispatches (
    id TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    category TEXT NOT NULL,
    project TEXT NOT NULL,
    feature TEXT NOT NULL,
    backend TEXT NOT NULL,
    model TEXT,
    parent TEXT,
    state TEXT NOT NULL,
    created_at TEXT NOT NULL,
    since TEXT NOT NULL,
    turns INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    -- 1 if the sums include its use.
    settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX dispatches_open ON dispatches (id) WHERE settled = 0;
CREATE TABLE usage (
    dispatch_id TEXT NOT NULL,
    model TEXT NOT NULL,
    hour TEXT NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    has_total INTEGER NOT NULL,
    PRIMARY KEY (dispatch_id, model, hour)
) WITHOUT ROWID;
CREATE INDEX usage_hour ON usage (hour);
CREATE TABLE sums (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    cost_usd REAL NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    dispatches INTEGER NOT NULL,
    -- Tokens without a price.
    unpriced INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE TABLE unpriced (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    dispatches INTEGER NOT NULL,
    PRIMARY KEY (kind, key, model)
) WITHOUT ROWID;
CREATE TABLE finished (
    first_seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    last_seq INTEGER NOT NULL,
    family INTEGER NOT NULL,
    state TEXT NOT NULL,
    dispatch BLOB NOT NULL
);
CREATE INDEX finished_family ON finished (family);
CREATE INDEX finished_state ON finished (state);
CREATE TABLE messages (
    -- The record that made the message.
    seq INTEGER PRIMARY KEY,
    thread TEXT NOT NULL,
    id TEXT NOT NULL,
    -- The first 16 bytes of the SHA-256 of the key of an inbound message, in hex.
    key TEXT,
    direction TEXT NOT NULL,
    at TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    dispatch TEXT,
    -- The message that answers it.
    answer TEXT,
    content TEXT NOT NULL
);
CREATE INDEX messages_thread ON messages (thread, seq);
CREATE INDEX messages_id ON messages (thread, id);
CREATE UNIQUE INDEX messages_key ON messages (thread, key) WHERE key IS NOT NULL;
CREATE TABLE signals (
    adapter TEXT NOT NULL,
    -- The first 16 bytes of the SHA-256 of the id of the request.
    key BLOB NOT NULL,
    PRIMARY KEY (adapter, key)
) WITHOUT ROWID;
";

/// Opens for writing and returns the applied seq. `E_DB_CORRUPT` if it is not a complete database
/// of ours.
pub(super) fn open(
    path: &Path,
    flags: OpenFlags,
    opened: &mut Opened,
) -> Result<(Connection, u64), StoreError> {
    let fail = error(path);
    let mut connection = connect(path, flags)?;
    let (version, empty) = version(&connection, path)?;
    if version == SCHEMA_VERSION {
        check(&connection, path)?;
    }
    // Only after the version is known to be ours, because a newer database must not be changed.
    connection.pragma_update(None, "journal_mode", "WAL").map_err(&fail)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(&fail)?;
    if version < SCHEMA_VERSION || !is_complete(&connection, path)? {
        opened.emptied = !empty;
        create(&mut connection).map_err(&fail)?;
    }
    let applied = applied(&connection, path)?;
    Ok((connection, applied))
}

pub(super) fn open_read_only(path: &Path) -> Result<Option<(Connection, u64)>, StoreError> {
    let connection =
        connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    if version(&connection, path)?.0 < SCHEMA_VERSION || !is_complete(&connection, path)? {
        return Ok(None);
    }
    let applied = applied(&connection, path)?;
    Ok(Some((connection, applied)))
}

/// Returns the applied seq, whether the tables have everything or not.
pub(super) fn progress(path: &Path) -> Option<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    path.exists().then(|| applied(&connect(path, flags).ok()?, path).ok()).flatten()
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let fail = error(path);
    let connection = Connection::open_with_flags(path, flags).map_err(&fail)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(&fail)?;
    Ok(connection)
}

/// Returns the schema's version, and whether the file is empty.
fn version(connection: &Connection, path: &Path) -> Result<(i64, bool), StoreError> {
    let fail = error(path);
    let ask = |pragma| {
        connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(&fail)
    };
    let (application, version) = (ask("application_id")?, ask("user_version")?);
    let objects: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(&fail)?;
    if application != APPLICATION_ID && (objects > 0 || version > 0) {
        return Err(StoreError::DbCorrupt {
            file: path.into(),
            why: "it is not a database of muleteer".into(),
        });
    }
    if version > SCHEMA_VERSION {
        return Err(StoreError::DbVersion {
            file: path.into(),
            found: version,
            known: SCHEMA_VERSION,
        });
    }
    Ok((version, objects == 0))
}

fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = error(path);
    let answer: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(&fail)?;
    if answer == "ok" {
        Ok(())
    } else {
        Err(StoreError::DbCorrupt { file: path.into(), why: answer })
    }
}

pub(super) fn applied(connection: &Connection, path: &Path) -> Result<u64, StoreError> {
    let applied: rusqlite::Result<i64> =
        connection.query_row("SELECT applied_seq FROM meta", [], |row| row.get(0));
    let corrupt = |why: String| StoreError::DbCorrupt { file: path.into(), why };
    match applied {
        Ok(seq) => u64::try_from(seq).map_err(|_| corrupt(format!("its applied seq is {seq}"))),
        // A whole file without its tables cannot be trusted.
        Err(source) => match error(path)(source) {
            StoreError::Db { source, .. } => Err(corrupt(source.to_string())),
            other => Err(other),
        },
    }
}

/// Returns whether the tables have everything up to the applied seq. A process that was killed
/// while it filled them again leaves them without the rest.
fn is_complete(connection: &Connection, path: &Path) -> Result<bool, StoreError> {
    let complete: rusqlite::Result<i64> =
        connection.query_row("SELECT complete FROM meta", [], |row| row.get(0));
    match complete {
        Ok(complete) => Ok(complete != 0),
        Err(source) => match error(path)(source) {
            StoreError::Db { source, .. } => {
                Err(StoreError::DbCorrupt { file: path.into(), why: source.to_string() })
            }
            other => Err(other),
        },
    }
}

/// Creates the tables in one transaction: a process killed in it leaves an empty file or the old
/// tables.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let tables: Vec<String> = {
        let mut statement =
            transaction.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
        let names = statement.query_map([], |row| row.get(0))?;
        names.collect::<rusqlite::Result<_>>()?
    };
    for table in tables.iter().filter(|name| !name.starts_with("sqlite_")) {
        transaction.execute_batch(&format!("DROP TABLE \"{table}\""))?;
    }
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}
