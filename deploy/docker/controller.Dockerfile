# A Tidelog controller. From the root of the repository:
#   docker build -f deploy/docker/controller.Dockerfile -t tidelog/controller .
FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254 AS build
WORKDIR /source
COPY deploy/docker/requirements.txt deploy/docker/build-requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --requirement build-requirements.txt \
 && python -m venv /opt/tidelog \
 && /opt/tidelog/bin/pip install --no-cache-dir --require-hashes --requirement requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY services services
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
 && /opt/tidelog/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl

FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
RUN groupadd --gid 10001 tidelog \
 && useradd --uid 10001 --gid tidelog --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tidelog \
 && install --directory --owner tidelog --group tidelog --mode 0700 /var/lib/tidelog
COPY --from=build /opt/tidelog /opt/tidelog
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDELOG_HOST=0.0.0.0 \
    TIDELOG_PORT=9192 \
    TIDELOG_DATA_DIR=/var/lib/tidelog
USER 10001:10001
VOLUME ["/var/lib/tidelog"]
EXPOSE 9192
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-m", "tidelog.probe"]
ENTRYPOINT ["python", "-m", "tidelog_controller"]
