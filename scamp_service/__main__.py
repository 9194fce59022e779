from scamp_service.cli import main

if __name__ == "__main__":
    main()
