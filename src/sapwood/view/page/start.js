// Everything begins, top to bottom.

function beginTheme() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const tell = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    timeline.redraw();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  dark.addEventListener("change", tell);
  tell();
}

// Each section's name is said once, in the page: here it becomes its title and its link.
function beginSections() {
  const sections = [...document.querySelectorAll("section[id]")];
  const named = sections.map((section) => [section, section.getAttribute("aria-label")]);
  fill("sections", named.map(([{ id }, name]) => make("a", { href: `#${id}` }, name)));
  for (const [section, name] of named) {
    section.prepend(make("h2", {}, name), make("p", { class: "lede", id: `${section.id}-lede` }));
  }
}

beginTheme();
beginSections();
summarise();
beginFunctions();
beginTimeline();
beginList();
watch(["recording"], tellRecording);
beginPages();
watch(["function"], paintMisses);
beginStore();
beginEvents();
fill("foot", `Drawn from a snapshot of schema ${snapshot.schema}. This page is whole: it asks nothing of the network.`);
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
