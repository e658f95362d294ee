//! The homes of the CLIs for agents that judge, as a table.

use crate::properties::sealed::{Content, SealedFile, SealedHome};
use muleteer_model::agent::capability;

const NONE: SealedHome = SealedHome {
    variable: "",
    folder: "",
    files: &[],
    kept: &[],
    histories: &[],
    databases: &[],
    set: &[],
    also: &[],
    unset: &[],
    links: &[],
    only: None,
};

/// The homes of all CLIs. Any of them may be behind a configured command, so each judging agent
/// gets all but those of opencode, which are the system's folders.
pub const HOMES: [SealedHome; 10] = [
    SealedHome {
        variable: "CLAUDE_CONFIG_DIR",
        folder: ".claude",
        files: &[
            SealedFile { name: ".credentials.json", is_beside: false, content: Content::Login },
            SealedFile {
                name: ".claude.json",
                is_beside: true,
                content: Content::Json(&["oauthAccount", "primaryApiKey", "userID"]),
            },
        ],
        kept: &[
            "projects",
            "todos",
            "file-history",
            "session-env",
            "plans",
            "image-cache",
            "paste-cache",
        ],
        histories: &["backups"],
        set: &[("CLAUDE_CODE_DISABLE_CLAUDE_MDS", "1"), ("CLAUDE_CODE_DISABLE_AUTO_MEMORY", "1")],
        ..NONE
    },
    SealedHome {
        variable: "CODEX_HOME",
        folder: ".codex",
        files: &[
            SealedFile { name: "auth.json", is_beside: false, content: Content::Login },
            SealedFile { name: "config.toml", is_beside: false, content: Content::Codex },
        ],
        kept: &["sessions", "archived_sessions"],
        histories: &["log"],
        unset: &["CODEX_SQLITE_HOME"],
        ..NONE
    },
    SealedHome {
        // It names the folder above `.gemini`.
        variable: "GEMINI_CLI_HOME",
        folder: "",
        files: &[
            SealedFile {
                name: ".gemini/oauth_creds.json",
                is_beside: false,
                content: Content::Login,
            },
            SealedFile {
                name: ".gemini/google_accounts.json",
                is_beside: false,
                content: Content::Login,
            },
            SealedFile {
                name: ".gemini/settings.json",
                is_beside: false,
                content: Content::Gemini,
            },
        ],
        kept: &[".gemini/tmp"],
        histories: &[".gemini/history"],
        ..NONE
    },
    SealedHome {
        variable: "QWEN_HOME",
        folder: ".qwen",
        files: &[
            SealedFile { name: "oauth_creds.json", is_beside: false, content: Content::Login },
            SealedFile { name: "settings.json", is_beside: false, content: Content::Qwen },
        ],
        kept: &["projects", "tmp"],
        histories: &["history"],
        // No hooks, extensions, skills, MCP servers and instructions, wherever they are.
        set: &[("QWEN_CODE_SAFE_MODE", "1")],
        unset: &["QWEN_RUNTIME_DIR"],
        ..NONE
    },
    SealedHome {
        variable: "COPILOT_HOME",
        folder: ".copilot",
        files: &[
            SealedFile { name: "config.json", is_beside: false, content: Content::Json(&COPILOT) },
            SealedFile {
                name: "settings.json",
                is_beside: false,
                content: Content::Json(&COPILOT),
            },
        ],
        kept: &["session-state", "history-session-state"],
        // It runs the code of its own packages that it finds in its cache.
        also: &["COPILOT_CACHE_HOME"],
        unset: &["COPILOT_CUSTOM_INSTRUCTIONS_DIRS", "COPILOT_PKG_CACHE_HOME"],
        ..NONE
    },
    SealedHome {
        variable: "CLINE_DIR",
        folder: ".cline",
        files: &[SealedFile {
            name: "data/settings/providers.json",
            is_beside: false,
            content: Content::Login,
        }],
        kept: &["data/sessions", "data/db", "data/workspaces"],
        unset: &[
            "CLINE_DATA_DIR",
            "CLINE_DB_DATA_DIR",
            "CLINE_GLOBAL_SETTINGS_PATH",
            "CLINE_HOOKS_DIR",
            "CLINE_MCP_SETTINGS_PATH",
            "CLINE_PROVIDER_SETTINGS_PATH",
            "CLINE_SESSION_DATA_DIR",
        ],
        ..NONE
    },
    SealedHome {
        variable: "PI_CODING_AGENT_DIR",
        folder: ".pi/agent",
        files: &[
            SealedFile { name: "auth.json", is_beside: false, content: Content::PiLogin },
            SealedFile {
                name: "models.json",
                is_beside: false,
                content: Content::PiJson(&["providers"]),
            },
            SealedFile {
                name: "settings.json",
                is_beside: false,
                content: Content::PiJson(&[
                    "defaultProvider",
                    "defaultModel",
                    "defaultThinkingLevel",
                    "retry",
                ]),
            },
        ],
        kept: &["sessions"],
        ..NONE
    },
    SealedHome {
        variable: "XDG_CONFIG_HOME",
        folder: ".config",
        files: &[
            SealedFile {
                name: "opencode/opencode.json",
                is_beside: false,
                content: Content::Opencode,
            },
            SealedFile {
                name: "opencode/opencode.jsonc",
                is_beside: false,
                content: Content::Opencode,
            },
        ],
        // It also loads plugins from `.opencode` in HOME, as it finds it.
        also: &["OPENCODE_TEST_HOME"],
        unset: &["OPENCODE_CONFIG_DIR", "OPENCODE_DB"],
        links: &["git/config", "git/ignore", "pip/pip.conf"],
        only: OPENCODE_ONLY,
        ..NONE
    },
    SealedHome {
        variable: "XDG_DATA_HOME",
        folder: ".local/share",
        files: &[SealedFile {
            name: "opencode/auth.json",
            is_beside: false,
            content: Content::Login,
        }],
        kept: &["opencode/storage"],
        databases: &[
            "opencode/opencode.db",
            "opencode/opencode.db-shm",
            "opencode/opencode.db-wal",
        ],
        only: OPENCODE_ONLY,
        ..NONE
    },
    // It imports the packages of model providers that it finds there.
    SealedHome {
        variable: "XDG_CACHE_HOME",
        folder: ".cache",
        links: &["pip", "go-build"],
        only: OPENCODE_ONLY,
        ..NONE
    },
];

/// Folders below HOME with conversations, snapshots of projects and logs, beside those that a home
/// above has: of CLIs that have no home there, as far as they are known, and those of opencode. The
/// variables of the system's folders move them.
pub const MORE_CONVERSATIONS: [&str; 21] = [
    ".augment/sessions",
    ".config/cursor/chats",
    ".cursor/chats",
    ".cursor/projects",
    ".factory/sessions",
    ".kimi/imported_sessions",
    ".kimi/logs",
    ".kimi/plans",
    ".kimi/sessions",
    ".kimi/user-history",
    ".kiro/sessions",
    ".local/share/amp/threads",
    ".local/share/goose/sessions",
    ".local/share/opencode/log",
    ".local/share/opencode/project",
    ".local/share/opencode/snapshot",
    ".local/share/opencode/tool-output",
    ".local/state/goose/logs",
    ".openhands/conversations",
    ".openhands/sessions",
    ".vibe/logs",
];

/// The variables of the homes whose logins are copied into a private HOME. The homes of the other
/// CLIs are shown there with their logins.
pub const LENT: [&str; 3] = ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME"];

/// The fields of Copilot's files that name the login and the model.
const COPILOT: [&str; 8] = [
    "copilotTokens",
    "copilot_tokens",
    "lastLoggedInUser",
    "last_logged_in_user",
    "loggedInUsers",
    "logged_in_users",
    "model",
    "storeTokenPlaintext",
];

const OPENCODE_ONLY: Option<&str> = Some(capability::OPENCODE.program);

/// Variables for opencode: it loads nothing from the repository but plugins, and neither plugins
/// nor the instructions of other CLIs from elsewhere.
pub const OPENCODE: [(&str, &str); 4] = [
    ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
    ("OPENCODE_DISABLE_CLAUDE_CODE", "1"),
    ("OPENCODE_DISABLE_EXTERNAL_SKILLS", "1"),
    ("OPENCODE_PURE", "1"),
];
