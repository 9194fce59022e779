// The page of the team: who one is, one's tokens, and for admins all users and who changed what. No event tells of most
// of it, so it is read again every few seconds while the page is seen.

import { watchCluster } from "./banner.js";
import { request } from "./client.js";
import { aside, card, fillRows, scrolling, tableHead } from "./elements/card.js";
import { copyButton } from "./elements/copy_button.js";
import { byId, h, keyed, setText } from "./elements/dom.js";
import { guarded } from "./elements/notices.js";
import { dateTime, detailWords, num, percent, plural } from "./format.js";
import { required } from "./required.js";

/** @import { AuditView, MeView, NewTokenView, NewUserView, TokenView, UseView, UserView } from "./answers.d.ts" */
/** @import { Children } from "./elements/dom.js" */

const ROLES = ["viewer", "editor", "admin"];
const CHANGES = 100; // of the audit log, the newest
const EVERY_MS = 5000;

/**
 * Periods by which the use of devices is summed up: how many there are before this one, and the day with which that many
 * periods before this one begin.
 * @type {Record<string, {past: number, firstDay: (today: Date, before: number) => Date}>}
 */
const PERIODS = {
  month: {
    past: 2,
    firstDay: (today, before) => new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - before, 1)),
  },
  week: {
    past: 4,
    firstDay: (today, before) => new Date(today.getTime() - DAY_MS * (((today.getUTCDay() + 6) % 7) + 7 * before)),
  },
};
const DAY_MS = 86_400_000;

/**
 * @param {string} method
 * @param {string} path
 * @param {Record<string, unknown>} [body]
 * @returns {Promise<any>}
 */
function send(method, path, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return request(path, { method, headers, body: body && JSON.stringify(body) });
}

/** @typedef {{users: UserView[], tokens: TokenView[], uses: UseView[], changes: AuditView[]}} Team what the tables show */

let period = "month"; // by which the use of devices is shown
let drawn = ""; // who one is, and whether there are users, as the cards were made for; as JSON
/** @type {((team: Team) => void)[]} */
let fills = []; // functions that fill the tables and the choices of the cards

async function load() {
  /** @type {MeView} */
  const me = await request("/v1/me");
  const everybody = me.may_manage ? "?every=true" : "";
  const [users, tokens, uses, changes] = await Promise.all([
    request("/v1/users"),
    request(`/v1/tokens${everybody}`),
    request(
      `/v1/usage?by=${period}&first=${PERIODS[period].firstDay(new Date(), PERIODS[period].past).toISOString().slice(0, 10)}`,
    ),
    me.may_manage ? request(`/v1/audit?limit=${CHANGES}`) : { items: [] },
  ]);
  draw(me, { users, tokens, uses, changes: changes.items });
}

/**
 * Make the cards if they are to be others, and fill them; what somebody is writing into a form stays.
 * @param {MeView} me
 * @param {Team} team
 */
function draw(me, team) {
  const isEmpty = !me.name && !team.users.length;
  setText(byId("summary"), whoWords(me, team.users.length));
  if (drawn !== JSON.stringify([me, isEmpty])) {
    drawn = JSON.stringify([me, isEmpty]);
    fills = [];
    const cards = [usersCard(me, isEmpty)];
    if (!isEmpty) cards.push(tokensCard(me));
    cards.push(usesCard());
    if (me.may_manage) cards.push(changesCard());
    byId("panels").replaceChildren(...cards);
  }
  for (const fill of fills) fill(team);
}

/**
 * @param {MeView} me
 * @param {number} numUsers
 * @returns {string}
 */
function whoWords(me, numUsers) {
  if (!me.name && !numUsers)
    return "There are no users: whoever reaches this service may do everything. From the first user on, everybody needs a token or a password.";
  const roles = Object.entries(me.roles).map(([project, role]) => `${role} in ${project}`);
  if (me.is_admin) roles.unshift("admin of the service");
  const limits = me.project === null ? "" : ` This token is for the project ${me.project}.`;
  return `You are ${me.name || "whoever has the token of the service"}: ${roles.join(", ") || "without a role"}.${limits}`;
}

/**
 * @param {MeView} me
 * @param {boolean} isFirst whether there are no users yet
 */
function usersCard(me, isFirst) {
  const rows = table("users", ["User", "Roles", "Quota", "E-mail", "Since", ""], "Nobody yet.", ({ users }) =>
    users.map((user) => {
      const roles = Object.entries(user.roles).map(([project, role]) => `${role} in ${project}`);
      if (user.is_admin) roles.unshift("admin of the service");
      const words = user.disabled_at === null ? "Disable" : "Enable";
      const change = () => send("PATCH", `/v1/users/${user.name}`, { is_disabled: user.disabled_at === null });
      const name = user.kind === "service" ? `${user.name} (service)` : user.name;
      const quotas = LIMITS.filter(([key]) => user[key] !== null).map(([key, words]) => words(user[key] ?? 0));
      const button = me.may_manage ? () => action(words, `${words} ${user.name}`, change) : "";
      return [
        name,
        roles.join(", ") || "none",
        quotas.join(", ") || "none",
        user.email,
        day(user.created_at),
        button,
        words,
      ];
    }),
  );
  const forms = me.may_manage ? [addForm(isFirst), grantForm(), quotaForm()] : [];
  return card({ id: "users", title: "Users" }, rows, ...forms);
}

/** @param {boolean} isFirst whether everybody will have to log in from then on */
function addForm(isFirst) {
  const name = field("Name", { name: "name", required: true, maxlength: 100 });
  const password = field("Password (optional)", { name: "password", type: "password", minlength: 10 });
  const admin = h("label", {}, h("input", { type: "checkbox", name: "is_admin" }), " admin of the service");
  return form("Add a user", [name, password, admin], async (values) => {
    /** @type {NewUserView} */
    const made = await send("POST", "/v1/users", {
      name: values.get("name"),
      password: values.get("password") || null,
      is_admin: values.get("is_admin") === "on",
    });
    showSecret(`Token of ${made.user.name}`, made.secret);
    if (!isFirst) return load();
    setText(byId("summary"), `${made.user.name} is the first user: log in with the token below or the password.`);
    byId("panels").replaceChildren(h("p", {}, h("a", { href: "/login?next=/team" }, "Log in")));
  });
}

function grantForm() {
  const name = choice("User", "user", []);
  const project = field("Project", { name: "project", value: "default", required: true });
  const role = choice("Role", "role", [...ROLES, "none"]);
  const made = form("Give a role", [name, project, role], (values) => {
    const [given, path] = [values.get("role"), encodeURIComponent(String(values.get("project")))];
    const body = { role: given === "none" ? null : given };
    return send("PUT", `/v1/projects/${path}/members/${values.get("user")}`, body).then(load);
  });
  return forUsers(made, name);
}

/** @type {["devices" | "trials" | "device_hours" | "max_priority", (quota: number) => string][]} */
const LIMITS = [
  ["devices", (quota) => plural(quota, "device")],
  ["trials", (quota) => plural(quota, "trial")],
  ["device_hours", (quota) => `${num(quota)} device-hours a month`],
  ["max_priority", (quota) => `${num(quota)} as priority`],
];

function quotaForm() {
  const name = choice("User", "user", []);
  const limit = choice(
    "Quota",
    "limit",
    LIMITS.map(([key]) => key),
  );
  const value = field("At most", { name: "value", type: "number", step: "any", placeholder: "no limit" });
  const made = form("Set a quota", [name, limit, value], (values) => {
    const text = String(values.get("value"));
    const body = { [String(values.get("limit"))]: text === "" ? null : Number(text) };
    return send("PATCH", `/v1/users/${values.get("user")}`, body).then(load);
  });
  return forUsers(made, name);
}

/**
 * A form with a choice of a user, which is hidden while there are none.
 * @param {HTMLFormElement} made
 * @param {HTMLElement} name
 */
function forUsers(made, name) {
  fills.push(({ users }) => {
    made.hidden = !users.length;
    const names = users.map((user) => user.name);
    keyed(required(name.querySelector("select")), names, String, (value) => h("option", { value }, value));
  });
  return made;
}

function usesCard() {
  const heads = ["From", "Project", "Owner", "Device-hours", "Busy"];
  const rows = table("uses", heads, "No device was used in this time.", ({ uses }) =>
    uses.map(({ period: from, project, owner, device_hours: hours, busy_share: share }) => [
      from,
      project || "–",
      owner || "–",
      num(hours),
      percent(share),
    ]),
  );
  const by = choice("by", "period", Object.keys(PERIODS));
  const select = required(by.querySelector("select"));
  const beside = aside("uses");
  const tell = () => setText(beside, `this ${period} and the ${PERIODS[period].past} before`);
  select.value = period;
  select.addEventListener("change", () => {
    period = select.value;
    tell();
    void guarded(load);
  });
  tell();
  return card({ id: "uses", title: "Device-hours", beside: [beside, h("span", { class: "tools" }, by)] }, rows);
}

/** @param {MeView} me */
function tokensCard(me) {
  const heads = ["User", "Token", "May", "Expires", "Last used", ""];
  const rows = table("tokens", heads, "There are no tokens.", ({ tokens }) =>
    tokens.map((token) => {
      const most = token.role === "admin" ? "as its user" : `at most as ${token.role}`;
      const may = token.project === null ? most : `${most}, in ${token.project}`;
      const revoke = () =>
        action("Revoke", `Revoke ${token.name} of ${token.user}`, () => send("DELETE", `/v1/tokens/${token.id}`));
      const expires = token.expires_at === null ? "never" : day(token.expires_at);
      const used = token.last_used_at === null ? "never" : dateTime(token.last_used_at);
      return [token.user, token.name, may, expires, used, token.revoked_at === null ? revoke : "revoked", token.id];
    }),
  );
  const name = field("What it is for", { name: "name", required: true, maxlength: 100, placeholder: "laptop" });
  const role = choice("May at most", "role", ROLES.toReversed());
  const days = field("Days", { name: "days", type: "number", min: 1, max: 3650, value: 90 });
  const make = form("Make a token", [name, role, days], async (values) => {
    /** @type {NewTokenView} */
    const made = await send("POST", "/v1/tokens", {
      name: values.get("name"),
      role: values.get("role"),
      days: Number(values.get("days")) || null,
    });
    showSecret(`Token ${made.token.name}`, made.secret);
    return load();
  });
  return card({ id: "tokens", title: "Tokens" }, rows, me.name ? make : null);
}

function changesCard() {
  const heads = ["When", "Who", "What", "Study", "Detail"];
  const rows = table("changes", heads, "Nothing has been changed yet.", ({ changes }) =>
    changes.map(({ id, time, actor, address, action: did, study_id: study, detail }) => {
      const link = study === null ? "" : () => h("a", { href: `/studies/${study}` }, study);
      const who = [actor || "–", address && ` (${address})`].join("");
      return [dateTime(time), who, did, link, detailWords(detail), id];
    }),
  );
  const beside = aside("changes", `the newest ${CHANGES}; `, h("a", { href: "/v1/audit.csv" }, "all as CSV"));
  return card({ id: "changes", title: "Changes", beside }, rows);
}

// --- parts ------------------------------------------------------------------------------------------------------------

/** @param {number} time */
function day(time) {
  return dateTime(time).slice(0, 10);
}

/** @typedef {string | number | (() => Node)} Cell text, or what makes an element */

/**
 * A table whose rows `rowsOf` says; what a row has after the last column only tells it from others.
 * @param {string} id
 * @param {string[]} heads
 * @param {string} empty
 * @param {(team: Team) => Cell[][]} rowsOf
 */
function table(id, heads, empty, rowsOf) {
  const columns = heads.map((name) => ({ name }));
  const body = h("tbody");
  const cells = (/** @type {Cell[]} */ row) =>
    row.slice(0, heads.length).map((cell) => h("td", { class: "wrap" }, typeof cell === "function" ? cell() : cell));
  fills.push((team) =>
    fillRows(body, rowsOf(team), {
      columns,
      empty,
      keyOf: (row) => row.filter((cell) => typeof cell !== "function").join("\n"),
      create: (row) => h("tr", {}, cells(row)),
      update: () => {},
    }),
  );
  return scrolling(id, "scroll list stacks", h("table", { class: "plain" }, tableHead(columns), body));
}

/**
 * A button that does something, after which the page is loaded again.
 * @param {string} words
 * @param {string} title
 * @param {() => Promise<unknown>} work
 */
function action(words, title, work) {
  const onclick = () => guarded(() => work().then(load));
  return h("button", { type: "button", class: "quiet", title, onclick }, words);
}

/**
 * @param {string} label
 * @param {Record<string, any>} props
 */
function field(label, props) {
  return h("label", {}, `${label} `, h("input", { autocomplete: "off", ...props }));
}

/**
 * @param {string} label
 * @param {string} name
 * @param {string[]} values
 */
function choice(label, name, values) {
  const options = values.map((value) => h("option", { value }, value));
  return h("label", {}, `${label} `, h("select", { name }, options));
}

/**
 * @param {string} words of the button
 * @param {Children} fields
 * @param {(values: FormData) => Promise<unknown>} work
 */
function form(words, fields, work) {
  const node = h("form", { class: "inline-form" }, fields, h("button", { type: "submit" }, words));
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    void guarded(async () => {
      await work(new FormData(node));
      node.reset();
    });
  });
  return node;
}

/**
 * @param {string} title
 * @param {string} secret which nothing shows again
 */
function showSecret(title, secret) {
  const words = h("p", {}, `${title}, shown this one time: `, h("code", {}, secret), " ");
  words.append(copyButton(() => secret));
  const notice = byId("secret");
  notice.replaceChildren(words);
  notice.hidden = false;
}

void guarded(load);
watchCluster(null);
setInterval(() => {
  if (drawn && !document.hidden && document.getElementById("users-card")) void guarded(load);
}, EVERY_MS);
