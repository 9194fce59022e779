// A button that copies text.

import { h, setText } from "./dom.js";
import { toast } from "./notices.js";

/**
 * A button that copies the text returned by `text()`.
 * @param {() => string} text
 * @param {string} [name]
 * @returns {HTMLButtonElement}
 */
export function copyButton(text, name = "Copy") {
  const button = h("button", { type: "button" }, name);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      setText(button, "Copied");
    } catch {
      toast("The browser does not allow pages to copy here. Select the text and copy it with the keyboard.");
    }
    setTimeout(() => setText(button, name), 1500);
  });
  return button;
}
