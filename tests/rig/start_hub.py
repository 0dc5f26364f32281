"""JupyterHub as ``python -m jupyterhub`` starts it, in a third of the time.

More than half of that goes into one package of its dependencies, which builds a parser while it is
imported: for the format "iri" of JSON schemas, which no event of the hub has. Without the package
jsonschema does not check that format. The tests start some hundred hubs; the demo starts the whole.
"""

import sys

if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # an import of it fails

    from jupyterhub.app import main

    main()
