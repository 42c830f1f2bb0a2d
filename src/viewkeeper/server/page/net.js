// Requests with the token, and event streams that reconnect.

const KEY = "viewkeeper-token";
let asking = null;

const headers = (more = {}) => {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
};

/** Asks the user for a token; concurrent callers share one dialog. */
function newToken(why) {
  if (asking) return asking;
  const dialog = document.getElementById("token");
  const text = document.getElementById("token-text");
  document.getElementById("token-why").textContent = why;
  text.value = "";
  asking = new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, text.value.trim());
      asking = null;
      resolve();
    }, { once: true });
  });
  dialog.showModal();
  return asking;
}

/** fetch, with a token if the server requires one. */
export async function request(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, { ...options, headers: headers(options.headers) });
    if (answer.status !== 401) return answer;
    const problem = await answer.json().catch(() => ({}));
    await newToken(sessionStorage.getItem(KEY) ? problem.detail ?? "The token is not right." : "");
  }
}

export class Problem extends Error {
  constructor(about) {
    super(about.detail ?? "The server failed.");
    this.about = about;
  }
}

/** The server's JSON; throws a Problem. */
export async function json(path, options = {}) {
  const answer = await request(path, options);
  const found = await answer.json();
  if (!answer.ok) throw new Problem(found);
  return found;
}

/** The events of a response, one after another. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const found = { event: "message", data: "", id: null };
        for (const line of part.split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) found[line.slice(0, at)] = line.slice(at + 2);
        }
        if (found.data) yield { ...found, data: JSON.parse(found.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Follows a stream until `signal` aborts; `state` is called with "on" and "off". */
export async function follow(path, signal, take, state = () => {}) {
  let last = null;
  let pause = 300;
  while (!signal.aborted) {
    try {
      const more = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const answer = await request(path, { headers: more, signal });
      if (!answer.ok) {
        const problem = await answer.json().catch(() => ({}));
        if (answer.status === 410) last = null;
        else if (answer.status < 500) return take({ event: "end", data: problem });
        throw new Error(problem.detail);
      }
      state("on");
      pause = 300;
      for await (const event of events(answer)) {
        if (event.id) last = event.id;
        take(event);
        if (event.event === "end" && event.data.code && event.data.code !== "VK702") return; // VK702: the user can enter another token
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    state("off");
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 1.6, 5000);
  }
}
