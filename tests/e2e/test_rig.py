"""The rig itself: real engine, hub, proxy, browser and database."""

import contextlib

import psycopg
import pytest
from playwright.sync_api import expect

from tests.rig.browser import log_in, save_screenshot, visit
from tests.rig.hub import docker_config
from tests.rig.processes import descendants, is_alive, wait_for

engine_test = pytest.mark.engine


@engine_test
def test_a_plain_server_starts_and_stops(engine, make_hub, notebook_image):
    gateway = engine.network("nb")
    hub = make_hub(docker_config(engine, "nb", notebook_image), hub_ip=gateway)
    answer = hub.start_server("ada")
    assert answer.status in (201, 202)
    assert hub.wait_server("ada")["url"] == "/user/ada/"
    assert hub.stop_server("ada").status in (202, 204)
    hub.wait_server("ada", ready=False)
    with contextlib.closing(engine.client()) as client:
        assert client.containers(all=True) == []


@engine_test
def test_a_stub_server_is_enough_for_the_hub(engine, make_hub, stub_image):
    gateway = engine.network("nb")
    hub = make_hub(docker_config(engine, "nb", stub_image), hub_ip=gateway)
    hub.start_server("ada")
    hub.wait_server("ada")


@engine_test
def test_a_container_sees_the_devices_it_was_given_by_uuid(engine, images):
    with contextlib.closing(engine.client()) as client:
        devices = ["GPU-6f1e8a3c", "GPU-0b7d2c11"]
        container = client.create_container(
            images.sees_all_gpus,
            host_config=client.create_host_config(
                device_requests=[
                    {"Driver": "nvidia", "DeviceIDs": devices, "Capabilities": [["gpu"]]}
                ]
            ),
        )["Id"]
        client.start(container)
        command = client.exec_create(container, ["cat", "/proc/1/environ"])
        environment = client.exec_start(command).decode().split("\0")
    seen = [line for line in environment if line.startswith("NVIDIA_VISIBLE_DEVICES=")]
    assert seen == ["NVIDIA_VISIBLE_DEVICES=GPU-6f1e8a3c,GPU-0b7d2c11"]


@engine_test
def test_an_engine_without_the_hook_refuses_a_device(make_engine, stub_image):
    plain = make_engine(hook=False)
    with contextlib.closing(plain.client()) as client:
        container = client.create_container(
            stub_image,
            host_config=client.create_host_config(
                device_requests=[{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]
            ),
        )["Id"]
        with pytest.raises(Exception, match="could not select device driver"):
            client.start(container)


@engine_test
def test_an_engine_comes_back_after_a_kill_and_ends_its_containers(engine, stub_image):
    with contextlib.closing(engine.client()) as client:
        container = client.create_container(stub_image)["Id"]
        client.start(container)
        engine.kill()
        engine.start()
        assert client.inspect_container(container)["State"]["Running"] is False


@engine_test
def test_with_live_restore_a_container_outlives_its_engine(make_engine, stub_image):
    engine = make_engine(live_restore=True)
    with contextlib.closing(engine.client()) as client:
        container = client.create_container(stub_image)["Id"]
        client.start(container)
        engine.kill()
        engine.start()
        assert client.inspect_container(container)["State"]["Running"] is True


@engine_test
def test_a_frozen_engine_gives_no_answer_until_thawed(engine):
    with contextlib.closing(engine.client(timeout=0.3)) as client:
        engine.freeze()
        with pytest.raises(Exception, match="timed out"):
            client.ping()
        engine.thaw()
        assert client.ping()


@engine_test
def test_images_end_as_their_names_say(engine, images):
    with contextlib.closing(engine.client()) as client:
        short = client.create_container(images.exits_at_once)["Id"]
        client.start(short)
        assert client.wait(short)["StatusCode"] == 3
        assert client.logs(short, stdout=False) == b"no kernel to be found\n"
        deaf = client.create_container(images.ignores_sigterm)["Id"]
        client.start(deaf)
        wait_for("its first line", lambda: client.logs(deaf))
        client.stop(deaf, timeout=1)
        assert client.inspect_container(deaf)["State"]["ExitCode"] == 137


def test_a_killed_hub_leaves_its_proxy_and_comes_back_with_its_users(make_hub):
    hub = make_hub('c.JupyterHub.spawner_class = "simple"')
    hub.add_user("ada")
    proxies = [p for p in descendants(hub.pid) if "configurable" in " ".join(p.cmdline())]
    hub.kill()
    assert proxies
    assert all(map(is_alive, proxies))
    hub.start()
    assert hub.api("GET", "/users/ada").status == 200
    hub.close()
    assert not any(map(is_alive, proxies))


@pytest.mark.postgresql
def test_each_database_is_empty_and_its_own(make_database):
    first, second = (make_database().replace("+psycopg", "") for _ in range(2))
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE lease (id int)")
    with psycopg.connect(second) as connection:
        found = connection.execute("SELECT to_regclass('lease')").fetchone()
    assert found == (None,)


@pytest.mark.postgresql
def test_a_killed_database_server_comes_back_with_its_data(postgres, make_database):
    url = make_database().replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE lease (id int)")
    postgres.kill()
    postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM lease").fetchone() == (0,)


@pytest.mark.browser
def test_a_person_logs_in_and_starts_a_server(make_hub, page):
    hub = make_hub('c.JupyterHub.spawner_class = "simple"\nc.Spawner.cmd = ["false"]')
    visit(page, hub.url)
    expect(page.locator("#login_submit")).to_be_visible()
    log_in(page, hub.url, "admin")
    visit(page, f"{hub.url}hub/admin")
    expect(page.get_by_text("admin").first).to_be_visible()
    assert save_screenshot(page, "rig-admin").stat().st_size > 0


async def test_the_api_answers_without_blocking(make_hub):
    hub = make_hub('c.JupyterHub.spawner_class = "simple"')
    hub.add_user("ada")
    token = hub.user_token("ada")
    answer = await hub.api_async("GET", "/user", token=token)
    assert (answer.status, answer.body["name"]) == (200, "ada")
    assert (await hub.api_async("GET", "/users", token=token)).status == 403
